//! `alerts`: receivers of alerts, and the pace of messages to them.

use super::reader::SettingsReader;
use crate::alerts::{NotifyPace, Webhook, WebhookSecret, WebhookUrl};
use std::ops::RangeInclusive;
use std::time::Duration;
use tollgate_limiter::core::yaml::Node;

/// The section, validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlertSettings {
    /// The receivers.
    pub webhooks: Vec<Webhook>,
    /// The pace of messages to each.
    pub pace: NotifyPace,
}

impl SettingsReader<'_> {
    /// Reads the section. Without it everything has its default.
    pub(super) fn alerts(&mut self, node: Option<&Node>) -> AlertSettings {
        let default = AlertSettings::default();
        let Some(fields) = node.and_then(|node| node.fields("`alerts`", &KEYS, &mut self.problems)) else {
            return default;
        };
        let mut pace = default.pace;
        self.read_durations(
            &fields,
            [("repeat", &mut pace.repeat, REPEAT), ("group", &mut pace.group, GROUP)],
        );
        let max_per_hour = fields
            .value("max_per_hour")
            .and_then(|node| node.integer("a number of messages", MESSAGES, &mut self.problems));
        if let Some(max_per_hour) = max_per_hour.and_then(|number| u32::try_from(number).ok()) {
            pace.max_per_hour = max_per_hour;
        }
        let list = fields
            .value("webhooks")
            .and_then(|node| node.list("a list of webhooks", &mut self.problems));
        let mut webhooks: Vec<Webhook> = Vec::new();
        for node in list.unwrap_or_default() {
            let Some(webhook) = self.webhook(node) else { continue };
            if webhooks.iter().any(|other| other.name == webhook.name) {
                let text = format!("two webhooks have the name `{}`", webhook.name);
                let hint = "give each a name of its own: silences, tests and messages name it";
                self.problems.error_with(&node.location, text, hint);
            }
            webhooks.push(webhook);
        }
        if webhooks.len() > WEBHOOKS_MAX
            && let Some(node) = fields.value("webhooks")
        {
            let text = format!("{} webhooks", webhooks.len());
            let hint = format!("write at most {WEBHOOKS_MAX}; a receiver can pass messages on");
            self.problems.error_with(&node.location, text, hint);
        }
        AlertSettings { webhooks, pace }
    }

    /// One webhook. Its URL may have a secret in it, so no message repeats it.
    fn webhook(&mut self, node: &Node) -> Option<Webhook> {
        let fields = node.fields("a webhook", &WEBHOOK_KEYS, &mut self.problems)?;
        let allow_private = fields
            .value("allow_private")
            .and_then(|node| node.flag(&mut self.problems));
        let allow_private = allow_private.unwrap_or(false);
        let name = fields
            .require("a webhook", "name", "name: ops", &mut self.problems)
            .and_then(|node| {
                let name = node.text("the name of a webhook", &mut self.problems)?;
                if !(1..=64).contains(&name.len()) {
                    let hint = "write 1 to 64 characters";
                    self.problems
                        .error_with(&node.location, "not a name of a webhook", hint);
                    return None;
                }
                Some(name.to_owned())
            });
        let example = "url: https://hooks.example.com/tollgate";
        let url = match self.secret_or_file(&fields, "url", "a URL") {
            Some((text, location)) => match WebhookUrl::parse(&text, allow_private) {
                Ok(url) => Some(url),
                Err(reason) => {
                    let text = format!("not the URL of a webhook: {reason}");
                    self.problems.error_with(&location, text, format!("write `{example}`"));
                    None
                }
            },
            None => {
                if fields.value("url_file").is_none() && fields.value("url").is_none() {
                    fields.require("a webhook", "url", example, &mut self.problems);
                }
                None
            }
        };
        let secret = match self.secret_or_file(&fields, "secret", "a secret") {
            Some((text, location)) => {
                let secret = WebhookSecret::new(&text);
                if secret.is_none() {
                    let text = format!("the secret has {} characters", text.chars().count());
                    let hint = format!(
                        "write at least {}, and the same in the receiver: `openssl rand -hex 32`",
                        WebhookSecret::CHARACTERS_MIN
                    );
                    self.problems.error_with(&location, text, hint);
                }
                secret
            }
            None => {
                if fields.value("secret_file").is_none() && fields.value("secret").is_none() {
                    fields.require("a webhook", "secret", "secret_file: webhook.secret", &mut self.problems);
                }
                None
            }
        };
        Some(Webhook {
            name: name?,
            url: url?,
            secret: secret?,
            allow_private,
        })
    }
}

/// The keys of the section.
pub(super) const KEYS: [&str; 4] = ["webhooks", "repeat", "group", "max_per_hour"];
/// The keys of one webhook.
pub(super) const WEBHOOK_KEYS: [&str; 6] = ["name", "url", "url_file", "secret", "secret_file", "allow_private"];
const REPEAT: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(30 * 86_400);
const GROUP: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);
const MESSAGES: RangeInclusive<u64> = 1..=3_600;
const WEBHOOKS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{accepted, read};

    const SECRET: &str = "0123456789abcdef";

    #[test]
    fn the_section_is_read_with_its_defaults() {
        assert_eq!(accepted("").alerts, AlertSettings::default());
        let alerts = accepted(&format!(
            "alerts:\n  repeat: 1h\n  group: 5s\n  max_per_hour: 3\n  webhooks:\n    - {{ name: ops, \
             url: 'https://hooks.example/x', secret: {SECRET} }}\n    - {{ name: local, url: 'http://127.0.0.1:9/', \
             secret: {SECRET}, allow_private: true }}\n"
        ))
        .alerts;
        let expected = NotifyPace {
            group: Duration::from_secs(5),
            repeat: Duration::from_secs(3_600),
            max_per_hour: 3,
        };
        assert_eq!(alerts.pace, expected);
        let webhook = |name: &str, url: &str, allow_private| Webhook {
            name: name.into(),
            url: WebhookUrl::parse(url, allow_private).expect("a URL"),
            secret: WebhookSecret::new(SECRET).expect("long enough"),
            allow_private,
        };
        let expected = [
            webhook("ops", "https://hooks.example/x", false),
            webhook("local", "http://127.0.0.1:9/", true),
        ];
        assert_eq!(alerts.webhooks, expected);
    }

    #[test]
    fn what_is_wrong_is_reported_without_secrets() {
        let webhook = |text: &str| format!("alerts: {{ webhooks: [{{ {text} }}] }}");
        for (text, message) in [
            (
                webhook("name: ops, url: 'http://hunter2.example/', secret: 0123456789abcdef"),
                "allow_private",
            ),
            (
                webhook("name: ops, url: 'https://u:hunter2@h/', secret: 0123456789abcdef"),
                "no user",
            ),
            (
                webhook("name: ops, url: 'hunter2', secret: 0123456789abcdef"),
                "not the URL of a webhook",
            ),
            (
                webhook("name: ops, url: 'https://h/', secret: hunter2"),
                "the secret has 7 characters",
            ),
            (webhook("name: ops, secret: 0123456789abcdef"), "url: https"),
            (webhook("name: ops, url: 'https://h/'"), "secret_file"),
            (webhook("url: 'https://h/', secret: 0123456789abcdef"), "name: ops"),
            (
                webhook("name: '', url: 'https://h/', secret: 0123456789abcdef"),
                "not a name",
            ),
            ("alerts: { repeat: 1s }".into(), "out of range"),
            ("alerts: { group: 2h }".into(), "out of range"),
            ("alerts: { max_per_hour: 0 }".into(), "number of messages"),
        ] {
            let (config, messages) = read(&text);
            assert!(config.is_none() && messages.contains(message), "{text}: {messages}");
            assert!(!messages.contains("hunter2"), "{text}: {messages}");
        }
        let one = format!("{{ name: ops, url: 'https://h/', secret: {SECRET} }}");
        let (config, messages) = read(&format!("alerts: {{ webhooks: [{one}, {one}] }}"));
        assert!(
            config.is_none() && messages.contains("two webhooks have the name"),
            "{messages}"
        );
    }
}
