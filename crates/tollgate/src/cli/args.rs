//! Arguments shared by the commands that call a running server, and printing of its responses.

use super::client::{OutputFormat, ServerArgs, ServerResponse};
use super::{EXIT_ERROR, EXIT_OK, fail};
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::process::ExitCode;

/// An attempt on the command line.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Attributes of the attempt, as name=value; the value is everything after the first `=`
    #[arg(value_name = "K=V", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// The domain whose rules apply
    #[arg(long, default_value = "default", value_name = "D")]
    domain: String,
    #[command(flatten)]
    server: ServerArgs,
    /// Prints the server's response as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl CheckArgs {
    /// Posts the attempt with the `extra` members to `path`, and prints the response or the error with its next step.
    pub(crate) fn send(
        &self,
        path: &str,
        extra: impl IntoIterator<Item = (&'static str, Value)>,
        format: OutputFormat,
        render: impl FnOnce(&ServerResponse) -> Option<(String, ExitCode)>,
    ) -> ExitCode {
        let mut attributes = Map::new();
        for (name, value) in &self.attributes {
            if attributes.insert(name.clone(), json!(value)).is_some() {
                return fail(&format!("duplicate attribute `{name}`; give it once"));
            }
        }
        let mut body = Map::from_iter([
            ("domain".to_owned(), json!(self.domain)),
            ("attributes".to_owned(), attributes.into()),
        ]);
        body.extend(extra.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let format = if self.json { OutputFormat::Json } else { format };
        let response = match self.server.post(path, &body.into(), format) {
            Ok(response) => response,
            Err(error) => return fail(&error.to_string()),
        };
        match render(&response) {
            Some((text, code)) => {
                let text = if self.json {
                    String::from_utf8_lossy(&response.body).trim_end().to_owned()
                } else {
                    text
                };
                print(&text);
                code
            }
            None => fail(&response.error_text()),
        }
    }
}

impl ServerResponse {
    /// The body, if it is JSON.
    pub(crate) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The error that the server reports, and the next step.
    fn error_text(&self) -> String {
        let text = self.json().and_then(|body| {
            let member = |name| body.get(name).and_then(Value::as_str).map(str::to_owned);
            let detail = member("detail").or_else(|| member("title"))?;
            Some(match member("field") {
                Some(field) if !detail.starts_with(&field) => format!("`{field}` {detail}"),
                _ => detail,
            })
        });
        let next_step = match self.status {
            StatusCode::UNAUTHORIZED => "pass a token with --token-file or TOLLGATE_TOKEN",
            StatusCode::FORBIDDEN => "pass a token with this right; the server's tokens_file lists the rights of each",
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => "correct the arguments and run again",
            // The server's own text says which: an unavailable store, too many requests in flight.
            StatusCode::SERVICE_UNAVAILABLE if text.is_some() => "retry later, or see its /readyz",
            StatusCode::SERVICE_UNAVAILABLE => "is a proxy in between? see the server's /readyz",
            _ => "is this URL a tollgate server of the same version?",
        };
        match text {
            Some(text) => format!("server error {}: {text}; {next_step}", self.status.as_u16()),
            None => format!("server error {}; {next_step}", self.status),
        }
    }
}

/// Prints to stdout; colours only on a terminal.
pub(crate) fn print(text: &str) {
    // A closed pipe means that the reader has seen enough.
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// The exit code of a verdict.
pub(crate) fn exit_code(allowed: bool) -> ExitCode {
    ExitCode::from(if allowed { EXIT_OK } else { EXIT_DENIED })
}

pub(super) fn attribute(input: &str) -> Result<(String, String), String> {
    match input.split_once('=') {
        Some(("", _)) => Err("missing name before `=`; write for example merchant=m_1".into()),
        Some((name, value)) => Ok((name.into(), value.into())),
        None => Err(format!("missing `=`; write for example {input}=m_1")),
    }
}

const EXIT_DENIED: u8 = 1;
const _: () = assert!(EXIT_DENIED != EXIT_ERROR && EXIT_DENIED != EXIT_OK);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_servers_own_text_and_a_next_step() {
        let text = |status: StatusCode, body: &'static str| {
            let body = hyper::body::Bytes::from(body);
            let headers = hyper::HeaderMap::new();
            ServerResponse { status, headers, body }.error_text()
        };
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(
            text(
                unavailable,
                r#"{"title":"Service Unavailable","detail":"the store did not answer in time"}"#
            ),
            "server error 503: the store did not answer in time; retry later, or see its /readyz"
        );
        assert_eq!(
            text(unavailable, "<html>"),
            "server error 503 Service Unavailable; is a proxy in between? see the server's /readyz"
        );
        assert_eq!(
            text(StatusCode::BAD_REQUEST, r#"{"field":"cost","detail":"is negative"}"#),
            "server error 400: `cost` is negative; correct the arguments and run again"
        );
    }

    #[test]
    fn everything_behind_the_first_equals_sign_is_the_value() {
        for (input, name, value) in [
            ("merchant=m_1", "merchant", "m_1"),
            ("query=a=b&c==d", "query", "a=b&c==d"),
            ("empty=", "empty", ""),
            ("a b=c d", "a b", "c d"),
        ] {
            assert_eq!(attribute(input), Ok((name.into(), value.into())));
        }
        assert!(attribute("merchant").is_err());
        assert!(attribute("=m_1").is_err());
    }
}
