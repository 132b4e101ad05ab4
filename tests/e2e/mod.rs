//! What the tests that run the examples as processes share.

#![allow(dead_code)] // each test binary uses a part of it

pub mod check;
pub mod fleet;
pub mod golden;
pub mod openai;
pub mod process;
pub mod sink;
pub mod stand_in;
