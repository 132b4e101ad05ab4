//! A TCP proxy that fails in the ways that networks and collectors do.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What happens to data and connections from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Data waits.
    Delay(Duration),
    /// Connections are closed when data comes.
    Reset,
    /// Requests go through; the connection is closed instead of the answer.
    LoseAnswer,
    /// HTTP/1 requests are answered with 503 and go no further.
    Unavailable,
    /// Requests are taken and never answered.
    Hang,
}

pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    upstream: SocketAddr,
    fault: Mutex<Fault>,
    stopped: AtomicBool,
    /// How often a fault struck.
    struck: AtomicU64,
}

impl Proxy {
    pub fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            upstream: SocketAddr::from(([127, 0, 0, 1], upstream)),
            fault: Mutex::new(Fault::None),
            stopped: AtomicBool::new(false),
            struck: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stopped.load(SeqCst) {
                    return;
                }
                let (Ok(client), state) = (stream, Arc::clone(&shared)) else { continue };
                thread::spawn(move || drop(connection(client, &state)));
            }
        });
        Self { address, state }
    }

    pub fn set(&self, fault: Fault) {
        *self.state.fault.lock().unwrap() = fault;
    }

    /// How often a fault has struck so far.
    pub fn struck(&self) -> u64 {
        self.state.struck.load(SeqCst)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stopped.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap()
    }

    fn strike(&self) {
        self.struck.fetch_add(1, SeqCst);
    }
}

/// Both directions of one connection.
fn connection(client: TcpStream, state: &Arc<State>) -> io::Result<()> {
    let server = TcpStream::connect(state.upstream)?;
    let close = |client: &TcpStream, server: &TcpStream| {
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    };
    let (answers_to, answers_from, shared) = (client.try_clone()?, server.try_clone()?, Arc::clone(state));
    thread::spawn(move || {
        let _ = answers(answers_from.try_clone().unwrap(), answers_to.try_clone().unwrap(), &shared);
        close(&answers_to, &answers_from);
    });
    let result = requests(client.try_clone()?, server.try_clone()?, state);
    close(&client, &server);
    result
}

fn requests(mut client: TcpStream, mut server: TcpStream, state: &State) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = client.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let chunk = &buffer[..count];
        match state.fault() {
            Fault::None | Fault::LoseAnswer => server.write_all(chunk)?,
            Fault::Delay(time) => {
                state.strike();
                thread::sleep(time);
                server.write_all(chunk)?;
            }
            Fault::Reset => {
                state.strike();
                return Ok(());
            }
            Fault::Hang => state.strike(),
            Fault::Unavailable => {
                state.strike();
                read_rest_of_request(&mut client, chunk)?;
                return client
                    .write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        }
    }
}

fn answers(mut server: TcpStream, mut client: TcpStream, state: &State) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = server.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        if state.fault() == Fault::LoseAnswer {
            state.strike();
            return Ok(());
        }
        client.write_all(&buffer[..count])?;
    }
}

/// Reads an HTTP/1 request to its end, so that the client is ready for the answer.
fn read_rest_of_request(client: &mut TcpStream, begin: &[u8]) -> io::Result<()> {
    let mut request = begin.to_vec();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let text = String::from_utf8_lossy(&request).to_lowercase();
        if let Some(head) = text.find("\r\n\r\n") {
            let length =
                text[..head].lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            // The lossy text may be longer than the bytes, but the head is ASCII.
            if request.len() >= head + 4 + length.unwrap_or(0) {
                return Ok(());
            }
        } else if !text.starts_with("post") {
            return Ok(());
        }
        let count = client.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..count]);
    }
}
