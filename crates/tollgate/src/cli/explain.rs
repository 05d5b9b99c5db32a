//! `tollgate explain`: prints the trace of every rule for an attempt.

use super::EXIT_OK;
use super::args::CheckArgs;
use super::client::OutputFormat;
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `tollgate explain`.
#[derive(clap::Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    args: CheckArgs,
    /// Cost of the attempt
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_name = "N")]
    cost: u64,
}

impl Explain {
    pub(crate) fn run(self) -> ExitCode {
        // The server renders the text: it knows the rules.
        self.args.send(
            "/v1/explain",
            [("cost", json!(self.cost))],
            OutputFormat::Text,
            |response| {
                let text = String::from_utf8_lossy(&response.body).trim_end().to_owned();
                (response.status.is_success()).then_some((text, ExitCode::from(EXIT_OK)))
            },
        )
    }
}
