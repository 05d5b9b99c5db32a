//! `control`: the control plane, its database and its pace.

use super::reader::SettingsReader;
use crate::control::database::Database;
use crate::control::{ControlOptions, ControlSecret, DatabaseChoice};
use std::ops::RangeInclusive;
use std::time::Duration;
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::problem::{Location, ValueError};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::{Fields, Node};

/// The section, validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlSettings {
    /// The place where changes are kept.
    pub database: DatabaseChoice,
    /// Everything else.
    pub options: ControlOptions,
}

impl SettingsReader<'_> {
    /// Reads the section. Without it everything has its default.
    pub(super) fn control(&mut self, node: Option<&Node>) -> ControlSettings {
        let default = ControlSettings::default();
        let Some(fields) = node.and_then(|node| node.fields("`control`", &KEYS, &mut self.problems)) else {
            return default;
        };
        let database = self.control_database(&fields);
        let secret = self.control_secret(&fields);
        let mut options = default.options;
        let durations = [
            ("poll", &mut options.poll, POLL),
            ("database_poll", &mut options.database_poll, DATABASE_POLL),
            ("cache_ttl", &mut options.cache_ttl, CACHE_TTL),
            ("prepare_timeout", &mut options.prepare_timeout, PREPARE_TIMEOUT),
            ("audit_keep", &mut options.audit_keep, AUDIT_KEEP),
        ];
        self.read_durations(&fields, durations);
        let start_without = fields
            .value("start_without")
            .and_then(|node| node.flag(&mut self.problems));
        let git_only = fields
            .value("edits")
            .and_then(|node| node.keyword("a way to edit rules", &EDITS, &mut self.problems));
        let keep_versions = fields
            .value("keep_versions")
            .and_then(|node| node.integer("a number", VERSIONS, &mut self.problems));
        ControlSettings {
            database,
            options: ControlOptions {
                secret,
                start_without: start_without.unwrap_or(options.start_without),
                git_only: git_only.unwrap_or(options.git_only),
                keep_versions: keep_versions.unwrap_or(options.keep_versions),
                ..options
            },
        }
    }

    /// The database. A URL may have a password, so no message repeats it.
    fn control_database(&mut self, fields: &Fields<'_>) -> DatabaseChoice {
        let Some((text, location)) = self.secret_or_file(fields, "database", "a database") else {
            return DatabaseChoice::default();
        };
        match text.as_str() {
            "data_dir" => DatabaseChoice::DataDir,
            "none" => DatabaseChoice::None,
            _ => self.postgres(text, &location),
        }
    }

    fn postgres(&mut self, url: String, location: &Location) -> DatabaseChoice {
        let has_scheme = ["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| url.starts_with(scheme));
        if has_scheme && Database::postgres(&url).is_ok() {
            return DatabaseChoice::Postgres(url);
        }
        self.problems.error_with(
            location,
            "not a database",
            "write `data_dir`, `postgres://user:password@host/database` or `none`",
        );
        DatabaseChoice::default()
    }

    fn control_secret(&mut self, fields: &Fields<'_>) -> Option<ControlSecret> {
        let (text, location) = self.secret_or_file(fields, "secret", "a secret")?;
        let secret = ControlSecret::new(&text);
        if secret.is_none() {
            self.problems.error_with(
                &location,
                format!("the secret has {} characters", text.chars().count()),
                format!(
                    "write at least {}, the same on all instances: `openssl rand -hex 32`",
                    ControlSecret::CHARACTERS_MIN
                ),
            );
        }
        secret
    }

    /// Reads the durations that are set, each in its range.
    pub(super) fn read_durations<const N: usize>(
        &mut self,
        fields: &Fields<'_>,
        durations: [(&str, &mut Duration, RangeInclusive<Duration>); N],
    ) {
        for (key, value, range) in durations {
            if let Some(duration) = fields.value(key).and_then(|node| self.duration_within(node, &range)) {
                *value = duration;
            }
        }
    }

    /// A duration in a range. Days may be written as `d`.
    pub(super) fn duration_within(&mut self, node: &Node, range: &RangeInclusive<Duration>) -> Option<Duration> {
        let read = node.read("a duration", parse_days, &mut self.problems)?;
        let duration = Duration::from(read);
        if !range.contains(&duration) {
            let (least, most) = (duration_name(*range.start()), duration_name(*range.end()));
            self.problems.error_with(
                &node.location,
                "out of range",
                format!("write from `{least}` to `{most}`"),
            );
            return None;
        }
        Some(duration)
    }
}

/// Parses a duration. Unlike those of rules, long ones are in days, so `400d` is one too.
fn parse_days(text: &str) -> Result<Micros, ValueError> {
    match text.trim_end().strip_suffix('d') {
        Some(days) if days.ends_with(|end: char| end.is_ascii_digit() || end == ' ') => {
            quantity::parse_duration(&format!("{days}day"))
        }
        _ => quantity::parse_duration(text),
    }
}

/// A duration in its largest unit.
fn duration_name(duration: Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    quantity::period_name(Micros::new(micros))
}

/// The keys of the section.
pub(super) const KEYS: [&str; 12] = [
    "database",
    "database_file",
    "secret",
    "secret_file",
    "poll",
    "database_poll",
    "cache_ttl",
    "prepare_timeout",
    "start_without",
    "edits",
    "keep_versions",
    "audit_keep",
];

/// Each way to edit rules: true if only a push creates versions.
pub(super) const EDITS: [(&str, bool); 2] = [("both", false), ("git", true)];

const POLL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
const DATABASE_POLL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);
/// A head is issued anew every 20 seconds.
const CACHE_TTL: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(30 * DAY);
/// A request of the admin API takes at most a minute.
const PREPARE_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(50);
const AUDIT_KEEP: RangeInclusive<Duration> = Duration::from_secs(DAY)..=Duration::from_secs(36_500 * DAY);
const VERSIONS: RangeInclusive<u64> = 2..=1_000_000;
const DAY: u64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{accepted, check_kept_secret};

    #[test]
    fn the_section_is_read_with_its_defaults() {
        assert_eq!(accepted("").control, ControlSettings::default());
        assert_eq!(accepted("control:").control, ControlSettings::default());
        let secret = "0123456789abcdef0123456789abcdef";
        let control = accepted(&format!(
            "control:\n  database: postgres://u:p@db/tollgate\n  secret: {secret}\n  poll: 2s\n  database_poll: 10s\n  \
             cache_ttl: 1h\n  prepare_timeout: 5s\n  start_without: true\n  edits: git\n  keep_versions: 50\n  audit_keep: 400d\n"
        ))
        .control;
        let seconds = Duration::from_secs;
        let expected = ControlOptions {
            secret: ControlSecret::new(secret),
            poll: seconds(2),
            database_poll: seconds(10),
            cache_ttl: seconds(3_600),
            prepare_timeout: seconds(5),
            start_without: true,
            git_only: true,
            keep_versions: 50,
            audit_keep: seconds(400 * DAY),
            ..ControlOptions::default()
        };
        assert_eq!(control.options, expected);
        assert_eq!(
            control.database,
            DatabaseChoice::Postgres("postgres://u:p@db/tollgate".into())
        );
        assert_eq!(
            accepted("control: { database: none }").control.database,
            DatabaseChoice::None
        );
        assert_eq!(
            accepted("control: { audit_keep: 2week }").control.options.audit_keep,
            seconds(14 * DAY)
        );
    }

    #[test]
    fn no_message_and_no_debug_text_repeats_a_secret() {
        check_kept_secret(&[
            "control: { secret: hunter2 }",
            "control: { database: 'mysql://u:hunter2@h/d' }",
            "control: { database: 'hunter2' }",
            "control: { database: [hunter2] }",
        ]);
        let config =
            accepted("control: { database: 'postgres://u:hunter2@h/d', secret: hunter2hunter2hunter2hunter2hunter2 }");
        let text = format!("{config:?}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
