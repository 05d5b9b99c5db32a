//! Reads the first request head into a small buffer before hyper allocates its state, so slow clients stay cheap.

use crate::server::net::prefixed_io::PrefixedIo;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use tokio::io::{AsyncRead, ReadBuf};

/// The version of HTTP that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpVersion {
    Http1,
    Http2,
}

/// Reads the first head, or until the bytes can be none, and pushes them back into the stream.
///
/// # Errors
/// The errors of the stream.
pub(super) async fn sniff<T: AsyncRead + Unpin>(stream: &mut PrefixedIo<T>) -> io::Result<HttpVersion> {
    let mut head = Vec::new();
    let read = poll_fn(|cx| {
        loop {
            let mut piece = [0; READ_BYTES];
            let mut buffer = ReadBuf::new(&mut piece);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
            let is_end = buffer.filled().is_empty();
            head.extend_from_slice(buffer.filled());
            if is_end || !needs_more(&head) {
                return Poll::Ready(Ok(()));
            }
        }
    });
    read.await?;
    let version = match head.starts_with(PREFACE) {
        true => HttpVersion::Http2,
        false => HttpVersion::Http1,
    };
    stream.push_back(head);
    Ok(version)
}

/// True if this is an incomplete head of HTTP/1. Hyper answers everything else.
fn needs_more(head: &[u8]) -> bool {
    let line_end = head.iter().position(|byte| *byte == b'\n');
    let (line, rest) = head.split_at(line_end.unwrap_or(head.len()));
    let is_text = |byte: &u8| matches!(byte, b' '..=b'~' | b'\r') || *byte >= 0x80;
    let is_line = line_end.is_none()
        || line.trim_ascii_end().ends_with(b" HTTP/1.1")
        || line.trim_ascii_end().ends_with(b" HTTP/1.0");
    let is_complete = || rest.windows(2).any(|pair| pair == b"\n\n") || rest.windows(3).any(|three| three == b"\n\r\n");
    head.len() < HEAD_BYTES_MAX && line.iter().all(is_text) && is_line && !is_complete()
}

/// The start of the HTTP/2 preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// Longer heads are left to hyper.
const HEAD_BYTES_MAX: usize = 4 * 1024;
/// Bytes per read: most heads arrive in one.
const READ_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[test]
    fn a_head_is_waited_for_until_it_is_whole() {
        for part in [
            "",
            "G",
            "PRI * HT",
            "GET / HTTP/1.1",
            "GET / HTTP/1.1\r\n",
            "GET /\u{e9} HTTP/1.0\nA: b\r\n",
        ] {
            assert!(needs_more(part.as_bytes()), "{part:?}");
        }
        for whole in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\nA: b\n\nbody",
            "GET / HTTP/1.1\nA: b\n\r\n",
        ] {
            assert!(!needs_more(whole.as_bytes()), "{whole:?}");
        }
    }

    #[test]
    fn what_is_no_head_is_not_waited_for() {
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_BYTES_MAX));
        for other in [
            "PING\r\n",
            "PRI * HTTP/2.0\r\n",
            "\u{16}\u{3}\u{1}",
            "\r\n",
            "GET / HTTP/9\n",
            long.as_str(),
        ] {
            assert!(!needs_more(other.as_bytes()), "{other:?}");
        }
    }

    #[tokio::test]
    async fn what_was_read_is_read_again_and_then_the_rest() {
        for (head, version) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", HttpVersion::Http1),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HttpVersion::Http2),
        ] {
            let (mut client, server) = duplex(7);
            let mut stream = PrefixedIo::new(server);
            let sent = tokio::spawn(async move {
                client.write_all(head.as_bytes()).await.unwrap();
                client.write_all(b"more").await.unwrap();
            });
            assert_eq!(sniff(&mut stream).await.unwrap(), version);
            let mut all = String::new();
            stream.read_to_string(&mut all).await.unwrap();
            assert_eq!(all, format!("{head}more"));
            sent.await.unwrap();
        }
    }
}
