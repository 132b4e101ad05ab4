//! What a request costs with this crate and with the crates one would use instead, all from one run.
//!
//! `cargo bench --manifest-path benches/peers/Cargo.toml` prints Markdown tables; `-- --quick` after it takes seconds, and
//! says only that all of it still works. It fails where a request in flight takes more memory than it may.

mod allocator;
mod app;
mod client;
mod cost;
mod in_flight;
mod process;
mod server;
mod table;
mod telemetry;
mod throughput;

use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static COUNTING: allocator::Counting = allocator::Counting;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => return tables(300, 20, Duration::from_millis(750)),
        ["--quick"] => return tables(3, 2, Duration::from_millis(100)),
        ["requests", name] => cost::serve_requests(name),
        ["calls", name] => cost::make_calls(name),
        ["serve", name] => throughput::serve(name),
        ["in-flight", name] => in_flight::park_requests(name),
        _ => panic!("arguments: none, or --quick"),
    }
    ExitCode::SUCCESS
}

fn tables(rounds: usize, load_rounds: usize, load: Duration) -> ExitCode {
    cost::table("A request through the router", "requests", server::ROWS, rounds);
    cost::table("A call of the client", "calls", client::ROWS, rounds);
    throughput::table(load_rounds, load);
    in_flight::table()
}
