//! The framing of unary calls: one message in, one message out.
//!
//! By hand, because `ShouldRateLimit` is the hot path (`bench/src/servers`, gRPC); health and reflection use tonic.

use crate::server::net::memory_budget::MemoryBudget;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response};
use prost::Message;
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::metadata::MetadataValue;

/// The body of a response.
pub(super) enum ReplyBody {
    /// A message, and trailers with status 0.
    Message(Option<Bytes>, Option<HeaderMap>),
    /// A body of tonic.
    Other(tonic::body::Body),
}

/// The memory budget for the messages of all calls of one front end.
pub(super) fn message_budget() -> MemoryBudget {
    MemoryBudget::new(BUDGET_BYTES, FREE_BYTES)
}

/// Reads the one message of a call.
///
/// # Errors
/// An invalid or too long message, an exhausted memory budget, or the error of `check`.
pub(super) async fn read<M, B>(
    body: B,
    budget: &MemoryBudget,
    check: impl Fn(&[u8]) -> Result<(), Status>,
) -> Result<M, Status>
where
    M: Message + Default,
    B: Body<Data = Bytes, Error: Display>,
{
    let mut body = pin!(body);
    let mut first = Bytes::new();
    // Collects a message of several frames.
    let mut pieces = BytesMut::new();
    let mut reservation = budget.reservation();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
        // Trailers of a caller are ignored.
        let Ok(data) = frame.into_data() else { continue };
        let length = first.len() + pieces.len() + data.len();
        if length > FRAME_HEAD_BYTES + MESSAGE_BYTES_MAX {
            return Err(too_long());
        }
        if !reservation.resize(length) {
            let text = "memory budget for large messages exhausted; retry, or send less at a time";
            return Err(Status::resource_exhausted(text));
        }
        if length == data.len() {
            first = data;
            continue;
        }
        pieces.extend_from_slice(&std::mem::take(&mut first));
        pieces.extend_from_slice(&data);
    }
    let mut bytes = if pieces.is_empty() { first } else { pieces.freeze() };
    let (Ok(compressed), Ok(length)) = (bytes.try_get_u8(), bytes.try_get_u32()) else {
        return Err(Status::internal("missing message"));
    };
    match compressed {
        0 => {}
        1 => {
            let mut status = Status::unimplemented("compressed messages are not supported");
            let identity = MetadataValue::from_static("identity");
            status.metadata_mut().insert("grpc-accept-encoding", identity);
            return Err(status);
        }
        _ => return Err(Status::internal("invalid compression flag")),
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        return Err(too_long());
    }
    if length != bytes.remaining() {
        let text = format!("message length is {length}, but {} bytes arrived", bytes.remaining());
        return Err(Status::internal(text));
    }
    check(&bytes)?;
    M::decode(bytes).map_err(|error| Status::internal(format!("invalid message: {error}")))
}

fn too_long() -> Status {
    Status::out_of_range(format!("a message has at most {MESSAGE_BYTES_MAX} bytes"))
}

/// Encodes a message as the response to a call.
pub(super) fn encode(message: &impl Message) -> Response<ReplyBody> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(FRAME_HEAD_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let mut response = Response::new(ReplyBody::Message(Some(bytes.into()), Some(trailers)));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The response to a call that failed.
pub(super) fn error_response(status: Status) -> Response<ReplyBody> {
    status.into_http().map(ReplyBody::Other)
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.get_mut() {
            Self::Message(message, trailers) => {
                let message = message.take().map(Frame::data);
                Poll::Ready(message.or_else(|| trailers.take().map(Frame::trailers)).map(Ok))
            }
            Self::Other(body) => Poll::Ready(ready!(Pin::new(body).poll_frame(cx))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(message, trailers) => message.is_none() && trailers.is_none(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Message(..) => SizeHint::default(),
            Self::Other(body) => body.size_hint(),
        }
    }
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// The compression flag and the length.
const FRAME_HEAD_BYTES: usize = 5;
/// The most bytes of messages in flight, beyond what each has free.
const BUDGET_BYTES: usize = 64 << 20;
/// The free bytes of every message: more than a usual one, which is one frame.
const FREE_BYTES: usize = 16 << 10;
/// The largest message of a caller.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::rls::RateLimitRequest;
    use futures_util::stream;
    use http_body_util::StreamBody;

    /// A message of so many bytes, behind its head.
    fn framed(length: usize) -> Bytes {
        // The key of a field and the length of its text take one byte and up to three.
        let mut request = RateLimitRequest {
            domain: "d".repeat(length - 4),
            ..RateLimitRequest::default()
        };
        while request.encoded_len() < length {
            request.domain.push('d');
        }
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(request.encoded_len()).unwrap());
        request.encode(&mut bytes).unwrap();
        assert_eq!(bytes.len(), FRAME_HEAD_BYTES + length);
        bytes.freeze()
    }

    async fn sent(bytes: &[u8], piece: usize, budget: &MemoryBudget) -> Result<usize, tonic::Code> {
        let pieces = bytes.chunks(piece).map(|piece| {
            let frame = Frame::data(Bytes::copy_from_slice(piece));
            Ok::<_, Status>(frame)
        });
        let read = read::<RateLimitRequest, _>(StreamBody::new(stream::iter(pieces)), budget, |_| Ok(())).await;
        read.map(|request| request.encoded_len())
            .map_err(|status| status.code())
    }

    #[tokio::test]
    async fn a_message_is_put_together_from_any_pieces_up_to_its_longest() {
        let budget = message_budget();
        for length in [16 << 10, 40_000, MESSAGE_BYTES_MAX] {
            for piece in [1_000, 16 << 10, 16_389, usize::MAX >> 1] {
                assert_eq!(
                    sent(&framed(length), piece, &budget).await,
                    Ok(length),
                    "{length} by {piece}"
                );
            }
        }
        let long = framed(MESSAGE_BYTES_MAX + 1);
        for piece in [1_000, 16 << 10, usize::MAX >> 1] {
            assert_eq!(
                sent(&long, piece, &budget).await,
                Err(tonic::Code::OutOfRange),
                "{piece}"
            );
        }
    }

    #[tokio::test]
    async fn large_messages_need_room_and_small_ones_none() {
        let budget = MemoryBudget::new(30_000, FREE_BYTES);
        let mut others = budget.reservation();
        others.resize(FREE_BYTES + 10_000);
        let [small, large, larger] =
            [FREE_BYTES - FRAME_HEAD_BYTES, FREE_BYTES + 10_000, FREE_BYTES + 25_000].map(framed);
        assert!(sent(&small, 1_000, &budget).await.is_ok());
        assert!(sent(&large, 1_000, &budget).await.is_ok());
        assert_eq!(sent(&larger, 1_000, &budget).await, Err(tonic::Code::ResourceExhausted));
        drop(others);
        assert!(sent(&larger, 1_000, &budget).await.is_ok());
    }
}
