//! What a server says first on a connection: enough to tell which protocol it speaks.
//!
//! An HTTP/2 client that meets HTTP/1 or TLS sees only a frame error.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};

/// The first bytes of the newest connection.
#[derive(Debug, Default)]
pub(super) struct FirstBytes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// The server closed or reset the connection before it said anything.
    hung_up: bool,
}

const ENOUGH: usize = 5;

/// What the first bytes look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstWord {
    /// There are none, or too few.
    None,
    /// There are none and never will be.
    HungUp,
    /// A SETTINGS frame.
    Http2,
    /// A TLS alert or handshake.
    Tls,
    Other,
}

impl FirstBytes {
    pub(super) fn verdict(&self) -> FirstWord {
        let state = self.lock();
        match state.bytes.as_slice() {
            [] if state.hung_up => FirstWord::HungUp,
            [0x15 | 0x16, 0x03, ..] => FirstWord::Tls,
            // A server's first frame (RFC 9113, section 3.4): three bytes of length, then the type.
            [0, _, _, 4, ..] => FirstWord::Http2,
            [_, _, _, _, ..] => FirstWord::Other,
            _ => FirstWord::None,
        }
    }

    /// A new connection is on its way.
    pub(super) fn forget(&self) {
        *self.lock() = State::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A connection whose first bytes are noted.
#[derive(Debug)]
pub(super) struct Watched<T> {
    stream: T,
    noted: usize,
    first_bytes: Arc<FirstBytes>,
}

impl<T> Watched<T> {
    pub(super) fn new(stream: T, first_bytes: &Arc<FirstBytes>) -> Self {
        Self { stream, noted: 0, first_bytes: Arc::clone(first_bytes) }
    }
}

impl<T: Read + Unpin> Watched<T> {
    /// Reads through a small buffer of our own, as the caller's cannot be looked at once it is filled.
    fn read_and_note(&mut self, cx: &mut Context<'_>, limit: usize) -> Poll<io::Result<([u8; ENOUGH], usize)>> {
        let mut bytes = [0; ENOUGH];
        let wanted = (ENOUGH - self.noted).min(limit);
        let mut own = ReadBuf::new(&mut bytes[..wanted]);
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, own.unfilled()));
        let filled = own.filled().len();
        let mut state = self.first_bytes.lock();
        state.bytes.extend_from_slice(&bytes[..filled]);
        state.hung_up = state.bytes.is_empty();
        drop(state);
        self.noted += filled;
        Poll::Ready(read.map(|()| (bytes, filled)))
    }

    /// A server that closes before it has read everything resets the connection, and the client's next write
    /// fails. What the server said before may still be there, but hyper would not read it any more.
    fn note_last_words<R>(&mut self, cx: &mut Context<'_>, written: io::Result<R>) -> io::Result<R> {
        if written.is_err() && self.noted == 0 && self.read_and_note(cx, ENOUGH).is_pending() {
            self.first_bytes.lock().hung_up = true;
        }
        written
    }
}

impl<T: Read + Unpin> Read for Watched<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.noted >= ENOUGH {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let limit = buf.remaining();
        let (bytes, filled) = ready!(self.read_and_note(cx, limit))?;
        buf.put_slice(&bytes[..filled]);
        Poll::Ready(Ok(()))
    }
}

impl<T: Read + Write + Unpin> Write for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        Poll::Ready(self.note_last_words(cx, written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs));
        Poll::Ready(self.note_last_words(cx, written))
    }
}

impl<T: Connection> Connection for Watched<T> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}
