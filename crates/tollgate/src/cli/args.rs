//! What the commands that ask a running server have in common: the attempt as it is typed, and the answer as it is shown.

use super::client::{OutputFormat, ServerArgs, ServerResponse};
use super::{EXIT_ERROR, EXIT_OK, fail};
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::process::ExitCode;

/// An attempt, as it is typed.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// What is known of the attempt: attribute=value. Everything behind the first `=` is the value
    #[arg(value_name = "K=V", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// The domain whose rules are meant
    #[arg(long, default_value = "default", value_name = "D")]
    domain: String,
    #[command(flatten)]
    server: ServerArgs,
    /// Prints the server's answer as it is
    #[arg(long)]
    pub(crate) json: bool,
}

impl CheckArgs {
    /// Asks, shows the answer if it is one, and says otherwise what to do. `more` goes into the question besides the attempt.
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
                return fail(&format!("attribute `{name}` is given twice; write it once"));
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

    /// What an answer that is none says, and the next step.
    fn error_text(&self) -> String {
        let text = self.json().and_then(|body| {
            let member = |name| body.get(name).and_then(Value::as_str).map(str::to_owned);
            let detail = member("detail").or_else(|| member("title"))?;
            Some(match member("field") {
                Some(field) => format!("`{field}` {detail}"),
                None => detail,
            })
        });
        let next_step = match self.status {
            StatusCode::UNAUTHORIZED => "give its token with --token or TOLLGATE_TOKEN",
            StatusCode::FORBIDDEN => "give a token with this right; the server's tokens_file says which have it",
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => "correct the question and ask again",
            StatusCode::SERVICE_UNAVAILABLE => "it is starting or draining; ask again, or see its /readyz",
            _ => "is it a tollgate, and of this version?",
        };
        match text {
            Some(text) => format!("the server answered {}: {text}; {next_step}", self.status.as_u16()),
            None => format!("the server answered {}; {next_step}", self.status),
        }
    }
}

/// Prints what was asked for. Colours in it are seen on a terminal only.
pub(crate) fn print(text: &str) {
    // Whoever closed the pipe has read enough.
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// The exit code of a verdict.
pub(crate) fn exit_code(allowed: bool) -> ExitCode {
    ExitCode::from(if allowed { EXIT_OK } else { EXIT_DENIED })
}

fn attribute(input: &str) -> Result<(String, String), String> {
    match input.split_once('=') {
        Some(("", _)) => Err("an attribute has a name; write for example merchant=m_1".into()),
        Some((name, value)) => Ok((name.into(), value.into())),
        None => Err(format!("it has no `=`; write for example {input}=m_1")),
    }
}

const EXIT_DENIED: u8 = 1;
const _: () = assert!(EXIT_DENIED != EXIT_ERROR && EXIT_DENIED != EXIT_OK);

#[cfg(test)]
mod tests {
    use super::*;

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
