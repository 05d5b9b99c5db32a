//! Replies of the servers, read without trust in who wrote the values.

use super::{CACHE_VALUE_MAX, CacheError, LogEntry, LogId};
use crate::store::redis::connection::value_text;
use redis::Value;

/// A reply to a call, if there was one.
type Reply = Option<Result<Value, CacheError>>;

/// The error of a reply that is missing.
pub(super) fn missing() -> Result<Value, CacheError> {
    Err(CacheError::Unavailable("the server sent too few replies".to_owned()))
}

fn unexpected() -> CacheError {
    CacheError::Unavailable("the server sent a reply of another command".to_owned())
}

/// A value, cut behind the largest there may be.
pub(super) fn value(name: &str, reply: Value) -> Result<Option<Vec<u8>>, CacheError> {
    match reply {
        Value::BulkString(bytes) if bytes.len() > CACHE_VALUE_MAX => Err(CacheError::Invalid(format!(
            "the key {name} holds more than {CACHE_VALUE_MAX} bytes; delete it"
        ))),
        // No value that was written is empty.
        Value::BulkString(bytes) => Ok((!bytes.is_empty()).then_some(bytes)),
        Value::Nil => Ok(None),
        _ => Err(unexpected()),
    }
}

/// The effect of a write.
pub(super) fn effect(reply: Reply) -> Result<bool, CacheError> {
    match reply.unwrap_or_else(missing) {
        Ok(Value::Okay | Value::SimpleString(_) | Value::BulkString(_)) => Ok(true),
        Ok(Value::Int(count)) => Ok(count > 0),
        Ok(Value::Nil) => Ok(false),
        Ok(_) => Err(unexpected()),
        // An id that is not above the last.
        Err(CacheError::Invalid(text)) if text.contains("The ID specified in XADD") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Changes of the stream.
pub(super) fn log(reply: Reply) -> Result<Vec<LogEntry>, CacheError> {
    let Value::Array(entries) = reply.unwrap_or_else(missing)? else {
        return Err(unexpected());
    };
    let (mut log, mut last) = (Vec::with_capacity(entries.len()), LogId::default());
    for entry in entries {
        let Value::Array(parts) = entry else {
            return Err(unexpected());
        };
        let mut parts = parts.into_iter();
        let id = parts.next().map(|id| value_text(&id)).unwrap_or_default();
        let Some(parsed) = log_id(&id).filter(|parsed| *parsed >= last) else {
            return Err(unexpected());
        };
        last = parsed;
        match parts.next() {
            Some(Value::BulkString(value)) if !value.is_empty() && value.len() <= CACHE_VALUE_MAX => {
                log.push(LogEntry { id: parsed, value });
            }
            // What is before it may be used.
            _ if !log.is_empty() => break,
            _ => {
                return Err(CacheError::Invalid(format!(
                    "the entry {parsed} of the stream log is no change; delete the stream"
                )));
            }
        }
    }
    Ok(log)
}

fn log_id(text: &str) -> Option<LogId> {
    let (epoch, revision) = text.split_once('-')?;
    Some(LogId {
        epoch: epoch.parse().ok()?,
        revision: revision.parse().ok()?,
    })
}

/// Members of the index; those that are no text are left out.
pub(super) fn members(reply: Reply) -> Result<Vec<String>, CacheError> {
    let Value::Array(members) = reply.unwrap_or_else(missing)? else {
        return Err(unexpected());
    };
    let text = |member: Value| match member {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    };
    Ok(members.into_iter().filter_map(text).collect())
}
