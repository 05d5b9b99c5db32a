//! A Unix socket on which `:authority` may be the path of the socket, as gRPC's C core writes it.
//!
//! The HTTP/2 library resets a stream whose authority is not one of a URI. So the header blocks of clients are searched for
//! it before they reach the library, and bytes that cannot be in an authority are replaced, one by one: the length stays
//! the same, and with it the client's compression state. Anything that is not HTTP/2 passes unchanged.

use super::write_through;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose reads are searched.
#[derive(Debug)]
pub struct AuthorityIo<T> {
    stream: T,
    state: ReadState,
    /// Bytes that wait for the rest of their frame, at most one header block and one read.
    pending: Vec<u8>,
    /// Bytes to hand out, from `taken` on.
    ready: Vec<u8>,
    taken: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// The protocol is not known.
    Start,
    /// HTTP/2; so many bytes of the current frame are not searched.
    Frames { skip: usize },
    /// Another protocol, or the end of the stream.
    Unchanged,
}

impl<T> AuthorityIo<T> {
    pub(super) const fn new(stream: T) -> Self {
        Self {
            stream,
            state: ReadState::Start,
            pending: Vec::new(),
            ready: Vec::new(),
            taken: 0,
        }
    }

    /// Moves what can be handed out from `pending` to `ready`.
    fn search(&mut self) {
        if self.state == ReadState::Start {
            let length = self.pending.len().min(PREFACE.len());
            if self.pending.get(..length) != PREFACE.get(..length) {
                self.state = ReadState::Unchanged;
            } else if length == PREFACE.len() {
                self.state = ReadState::Frames { skip: length };
            } else {
                return;
            }
        }
        while let ReadState::Frames { skip } = self.state {
            let passed = skip.min(self.pending.len());
            self.hand_out(passed);
            if passed < skip {
                self.state = ReadState::Frames { skip: skip - passed };
                return;
            }
            let Some(frame) = FrameHead::read(&self.pending) else {
                self.state = ReadState::Frames { skip: 0 };
                return;
            };
            let whole = FRAME_HEAD_BYTES + frame.length;
            if frame.kind == HEADERS && frame.length <= BLOCK_BYTES_MAX {
                let Some(payload) = self.pending.get_mut(FRAME_HEAD_BYTES..whole) else {
                    self.state = ReadState::Frames { skip: 0 };
                    return;
                };
                rewrite(payload, frame.flags);
            }
            self.state = ReadState::Frames { skip: whole };
        }
        self.hand_out(self.pending.len());
    }

    fn hand_out(&mut self, bytes: usize) {
        self.ready.extend(self.pending.drain(..bytes));
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for AuthorityIo<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if let Some(rest) = this.ready.get(this.taken..).filter(|rest| !rest.is_empty()) {
                let bytes = rest.len().min(buffer.remaining());
                buffer.put_slice(rest.get(..bytes).unwrap_or_default());
                this.taken += bytes;
                return Poll::Ready(Ok(()));
            }
            this.ready.clear();
            this.taken = 0;
            if this.state == ReadState::Unchanged {
                return Pin::new(&mut this.stream).poll_read(cx, buffer);
            }
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            this.pending.extend_from_slice(read.filled());
            if read.filled().is_empty() {
                // What is incomplete stays so.
                this.state = ReadState::Unchanged;
            }
            this.search();
            if this.ready.is_empty() && this.state == ReadState::Unchanged {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for AuthorityIo<T> {
    write_through!();
}

struct FrameHead {
    length: usize,
    kind: u8,
    flags: u8,
}

impl FrameHead {
    /// Reads the head of a frame; none if it is incomplete.
    fn read(bytes: &[u8]) -> Option<Self> {
        let [high, middle, low, kind, flags, ..] = *bytes.first_chunk::<FRAME_HEAD_BYTES>()?;
        Some(Self {
            length: u32::from_be_bytes([0, high, middle, low]) as usize,
            kind,
            flags,
        })
    }
}

/// Replaces what cannot be in an authority in the payload of a HEADERS frame. Malformed payloads are left to the library.
fn rewrite(payload: &mut [u8], flags: u8) {
    let (mut start, mut end) = (0, payload.len());
    if flags & PADDED != 0 {
        let padding = payload.first().copied().unwrap_or_default();
        start += 1;
        end = end.saturating_sub(usize::from(padding));
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    if let Some(block) = payload.get_mut(start..end)
        && let Some(range) = authority(block)
        && let Some(value) = block.get_mut(range)
        && value.iter().any(|byte| matches!(byte, b'/' | b'%'))
        && !value.iter().any(|byte| matches!(byte, b'[' | b'@'))
    {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        for byte in value.iter_mut().filter(|byte| !is_valid(**byte)) {
            *byte = b'-';
        }
    }
}

/// Finds the value of `:authority` in an HPACK block (RFC 7541) if it is a literal without Huffman coding.
fn authority(block: &[u8]) -> Option<std::ops::Range<usize>> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40..0x80 => (6, true),
            // The size of the dynamic table.
            0x20..0x40 => (5, false),
            _ => (4, true),
        };
        let name_index = integer(block, &mut at, prefix)?;
        if !is_literal {
            continue;
        }
        let is_authority = match name_index {
            0 => {
                let (name, is_huffman) = string(block, &mut at)?;
                !is_huffman && block.get(name)? == b":authority"
            }
            index => index == AUTHORITY_INDEX,
        };
        let (value, is_huffman) = string(block, &mut at)?;
        if is_authority {
            return (!is_huffman).then_some(value);
        }
    }
    None
}

/// Reads the range of a string, and whether it is Huffman coded.
fn string(block: &[u8], at: &mut usize) -> Option<(std::ops::Range<usize>, bool)> {
    let is_huffman = block.get(*at)? & 0x80 != 0;
    let length = integer(block, at, 7)?;
    let end = at.checked_add(length)?;
    block.get(*at..end)?;
    let range = *at..end;
    *at = end;
    Some((range, is_huffman))
}

/// Reads an integer whose first byte has so many bits of it.
fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let mask = (1_u8 << prefix) - 1;
    let first = block.get(*at)? & mask;
    *at += 1;
    let mut number = usize::from(first);
    if first < mask {
        return Some(number);
    }
    for shift in [0, 7, 14, 21] {
        let byte = *block.get(*at)?;
        *at += 1;
        number += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The index of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;
/// The longest header block that is searched: the longest frame without another agreement.
const BLOCK_BYTES_MAX: usize = 16 << 10;
/// Bytes per read.
const READ_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests;
