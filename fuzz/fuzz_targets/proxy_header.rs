//! Feeds any bytes, in any pieces, to the reader of PROXY headers.
//!
//! ```text
//!   length of the pieces | the bytes of the stream
//! ```
//!
//! The pieces make no difference. The reader takes no byte behind a header, and no more than the longest header. A
//! header without its last byte is not complete.
#![no_main]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use tenbin_broker::fuzzing::read_proxy_header;
use tokio::io::{AsyncRead, ReadBuf};

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let (header, taken) = read(stream, usize::MAX);
    assert_eq!(read(stream, usize::from(piece) + 1), (header.clone(), taken), "the pieces make a difference");
    assert!(taken <= LONGEST, "{taken} bytes");
    if header.is_ok() {
        assert_eq!(read(&stream[..taken], usize::MAX), (header.clone(), taken));
        assert_eq!(read(&stream[..taken - 1], usize::MAX).0, Err(None), "it is cut");
    }
    if header == Err(None) {
        assert_eq!(taken, stream.len(), "bytes are left");
    }
});

/// The header of a stream, and how many bytes were taken. A read returns at most `piece` bytes.
fn read(stream: &[u8], piece: usize) -> (Result<String, Option<&'static str>>, usize) {
    let mut pieces = Pieces { rest: stream, piece };
    let read = std::pin::pin!(read_proxy_header(&mut pieces)).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(header) = read else { panic!("it waits, although all bytes are there") };
    (header, stream.len() - pieces.rest.len())
}

struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (piece, rest) = self.rest.split_at(self.piece.min(buffer.remaining()).min(self.rest.len()));
        buffer.put_slice(piece);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// First 16 bytes, longest addresses, and 4 KiB of TLVs.
const LONGEST: usize = 16 + 216 + 4096;
