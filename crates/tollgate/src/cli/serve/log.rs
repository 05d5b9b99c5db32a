//! The log, on stderr.

use crate::config::LogFormat;
use serde_json::{Map, Value};
use std::fmt;
use std::io::IsTerminal;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Installs the log, from this level up.
pub(super) fn init(level: LevelFilter, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr);
    // It is installed once.
    let _ = match format {
        LogFormat::Text => {
            let is_terminal = std::io::stderr().is_terminal();
            tracing::subscriber::set_global_default(log.with_ansi(is_terminal).with_target(false).finish())
        }
        LogFormat::Json => tracing::subscriber::set_global_default(log.event_format(JsonFormat).finish()),
    };
}

/// One JSON object per line, with the member names of `ratelimit`.
struct JsonFormat;

impl<S, N> FormatEvent<S, N> for JsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = JsonFields(Map::new());
        fields.0.insert("@timestamp".into(), time.into());
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        fields.0.insert("level".into(), level.into());
        event.record(&mut fields);
        writeln!(writer, "{}", Value::from(fields.0))
    }
}

/// The members of one event.
struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn add(&mut self, field: &Field, value: Value) {
        let name = if field.name() == "message" {
            "@message"
        } else {
            field.name()
        };
        self.0.insert(name.into(), value);
    }
}

impl Visit for JsonFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}
