//! What the three example servers share: nothing here is about telemetry.

#![allow(dead_code)] // each server uses a part of it

pub mod args;
pub mod http;
pub mod responses_api;
pub mod session;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

/// Binds a port of the loopback interface; 0 takes any free one.
pub async fn bind(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await
}

/// Says that the server is ready and where. The line is for whoever started the process, so a closed stdout is no error.
pub fn announce(address: SocketAddr) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "listening on http://{address}").and_then(|()| stdout.flush());
}
