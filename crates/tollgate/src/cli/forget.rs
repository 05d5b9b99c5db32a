//! `tollgate forget`: clears the counters of one subject.

use super::EXIT_OK;
use super::args::CheckArgs;
use super::client::OutputFormat;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Arguments of `tollgate forget`.
#[derive(clap::Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    args: CheckArgs,
    /// Only the counters of this rule, or of one of its windows (search.1min)
    #[arg(long, value_name = "ID")]
    rule: Option<String>,
}

impl Forget {
    pub(crate) fn run(self) -> ExitCode {
        let rule = self.rule.map(|rule| ("rule", json!(rule)));
        self.args.send("/v1/forget", rule, OutputFormat::Json, |response| {
            let body = response.json()?;
            let text = match body.get("forgotten").and_then(Value::as_u64)? {
                0 => "nothing to forget: this subject has no counters".into(),
                1 => "forgot 1 counter".into(),
                count => format!("forgot {count} counters"),
            };
            Some((text, ExitCode::from(EXIT_OK)))
        })
    }
}
