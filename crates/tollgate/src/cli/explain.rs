//! `tollgate explain`: why would this attempt be allowed or denied?

use super::EXIT_OK;
use super::args::CheckArgs;
use super::client::OutputFormat;
use serde_json::json;
use std::process::ExitCode;

/// What can be typed after `tollgate explain`.
#[derive(clap::Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    args: CheckArgs,
    /// What the attempt would cost
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_name = "N")]
    cost: u64,
}

impl Explain {
    pub(crate) fn run(self) -> ExitCode {
        // The text for people is the server's: it knows the rules.
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
