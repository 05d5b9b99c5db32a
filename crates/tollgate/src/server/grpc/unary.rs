//! One message in, one message out: how gRPC puts them into HTTP/2. Calls of Envoy take this way and no other.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response};
use prost::Message;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::metadata::MetadataValue;

/// What is sent back.
pub(super) enum Reply {
    /// A message, and that all is well.
    Message(Option<Bytes>, Option<HeaderMap>),
    /// What others make.
    Other(tonic::body::Body),
}

/// Reads the one message of a call.
///
/// # Errors
/// What is no such message, and what is too long.
pub(super) async fn read<M: Message + Default>(body: Incoming) -> Result<M, Status> {
    let mut body = pin!(body);
    let mut first = Bytes::new();
    // A message that comes in several pieces is put together here.
    let mut pieces = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
        // Trailers of a caller say nothing.
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() && pieces.is_empty() {
            first = data;
            continue;
        }
        if first.len() + pieces.len() + data.len() > HEAD + MESSAGE_BYTES_MAX {
            return Err(too_long());
        }
        pieces.extend_from_slice(&std::mem::take(&mut first));
        pieces.extend_from_slice(&data);
    }
    if pieces.is_empty() {
        return message(first);
    }
    message(pieces)
}

fn message<M: Message + Default>(mut bytes: impl Buf) -> Result<M, Status> {
    let (Ok(compressed), Ok(length)) = (bytes.try_get_u8(), bytes.try_get_u32()) else {
        return Err(Status::internal("there is no message"));
    };
    match compressed {
        0 => {}
        1 => {
            let mut status = Status::unimplemented("messages are not read compressed");
            let identity = MetadataValue::from_static("identity");
            status.metadata_mut().insert("grpc-accept-encoding", identity);
            return Err(status);
        }
        _ => return Err(Status::internal("a message begins with 0 or 1")),
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        return Err(too_long());
    }
    if length != bytes.remaining() {
        let words = format!(
            "a message of {length} bytes is announced, and {} came",
            bytes.remaining()
        );
        return Err(Status::internal(words));
    }
    M::decode(bytes).map_err(|error| Status::internal(format!("this is no such message: {error}")))
}

fn too_long() -> Status {
    Status::out_of_range(format!("a message has at most {MESSAGE_BYTES_MAX} bytes"))
}

/// Writes a message as the answer to a call.
pub(super) fn written(message: &impl Message) -> Response<Reply> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(HEAD + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let mut response = Response::new(Reply::Message(Some(bytes.into()), Some(trailers)));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// What a call is answered that has no message to show.
pub(super) fn refused(status: Status) -> Response<Reply> {
    status.into_http().map(Reply::Other)
}

impl Body for Reply {
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
/// Whether it is compressed, and its length.
const HEAD: usize = 5;
/// The largest message of a caller.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 * 1024;
