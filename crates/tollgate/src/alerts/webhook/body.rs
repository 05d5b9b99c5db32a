//! The body of a message: JSON of Alertmanager's webhooks, version 4, with a member `tollgate`.

use super::{Webhook, WebhookSecret};
use crate::alerts::model::{Alert, AlertKey, AlertState};
use crate::alerts::notifier::AlertMessage;
use crate::calendar::rfc3339;
use crate::config::SubjectDisplay;
use bytes::Bytes;
use serde_json::{Map, Value, json};

/// The circumstances of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::alerts) struct Envelope {
    /// The id of this instance.
    pub(in crate::alerts) instance: String,
    /// The URL of the admin API; may be empty.
    pub(in crate::alerts) external_url: String,
    /// The version of the managed rules; 0: none.
    pub(in crate::alerts) rules_version: u64,
    /// The epoch and the revision that are applied; 0: none.
    pub(in crate::alerts) epoch: u64,
    pub(in crate::alerts) revision: u64,
    /// The number of the last entry of the audit log, and its hash.
    pub(in crate::alerts) audit_end: Option<(u64, String)>,
    /// Subjects as others see them.
    pub(in crate::alerts) subjects: SubjectDisplay,
    /// True for a message that only tries the webhook.
    pub(in crate::alerts) is_test: bool,
}

/// The time of something that has not ended.
const NOT_ENDED: &str = "0001-01-01T00:00:00Z";

/// Renders one message.
pub(in crate::alerts) fn render(webhook: &Webhook, message: &AlertMessage, envelope: &Envelope) -> Bytes {
    let receiver = &webhook.name;
    let alerts: Vec<Value> = message
        .alerts
        .iter()
        .map(|alert| alert_json(alert, webhook, envelope))
        .collect();
    let is_firing = message.alerts.iter().any(|alert| alert.state == AlertState::Firing);
    let body = json!({
        "version": "4",
        "groupKey": format!("tollgate/{receiver}"),
        "truncatedAlerts": message.left_out,
        "status": if is_firing { "firing" } else { "resolved" },
        "receiver": receiver,
        "groupLabels": {},
        "commonLabels": common(&alerts, "labels"),
        "commonAnnotations": common(&alerts, "annotations"),
        "externalURL": envelope.external_url,
        "alerts": alerts,
        "tollgate": {
            "program": env!("CARGO_PKG_VERSION"),
            "instance": envelope.instance,
            "epoch": envelope.epoch,
            "revision": envelope.revision,
            "version": envelope.rules_version,
            "audit": envelope.audit_end.as_ref().map(|(seq, hash)| json!({ "seq": seq, "hash": hash })),
            "digest": message.is_digest,
            "test": envelope.is_test,
        },
    });
    Bytes::from(body.to_string())
}

fn alert_json(alert: &Alert, webhook: &Webhook, envelope: &Envelope) -> Value {
    let kind = alert.key.kind;
    let mut labels = Map::new();
    labels.insert("alertname".into(), kind.name().into());
    labels.insert("severity".into(), kind.severity().name().into());
    if let Some(name) = &alert.key.rule {
        labels.insert("domain".into(), (*name.domain).into());
        labels.insert("rule".into(), (*name.rule).into());
    }
    if let Some(subject) = &alert.key.subject {
        let values = subject
            .iter()
            .map(|(name, value)| (name, envelope.subjects.show(value)));
        let text: Vec<String> = values.map(|(name, value)| format!("{name}={value}")).collect();
        labels.insert("subject".into(), text.join(",").into());
    }
    json!({
        "status": if alert.state == AlertState::Firing { "firing" } else { "resolved" },
        "labels": labels,
        "annotations": {
            "summary": alert.summary,
            "value": alert.value.to_string(),
            "baseline": alert.baseline.to_string(),
        },
        "startsAt": rfc3339(alert.since),
        "endsAt": alert.resolved_at.map_or_else(|| NOT_ENDED.to_owned(), rfc3339),
        "generatorURL": envelope.external_url,
        "fingerprint": fingerprint(&alert.key, &webhook.secret),
    })
}

/// The identity of an alert for one receiver: the same after a restart and from another control service. With the secret, as it would
/// otherwise tell which subject is behind a mask.
fn fingerprint(key: &AlertKey, secret: &WebhookSecret) -> String {
    let rule = key.rule.iter().flat_map(|name| [&*name.domain, &*name.rule]);
    let subject = key.subject.iter().flat_map(|subject| subject.iter());
    let subject = subject.flat_map(|(name, value)| [name.as_str(), value.as_str()]);
    let parts: Vec<&str> = [key.kind.name()].into_iter().chain(rule).chain(subject).collect();
    // As JSON, so that no two keys have one text.
    let mut code = secret.code(&[b"fingerprint:", json!(parts).to_string().as_bytes()]);
    code.truncate(16);
    code
}

/// The labels or annotations that all alerts have in common.
fn common(alerts: &[Value], member: &str) -> Map<String, Value> {
    let mut sets = alerts.iter().filter_map(|alert| alert.get(member)?.as_object());
    let mut common = sets.next().cloned().unwrap_or_default();
    for set in sets {
        common.retain(|name, value| set.get(name) == Some(value));
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::WebhookUrl;
    use crate::alerts::model::{AlertKind, AlertRule};
    use std::sync::Arc;

    fn alert(kind: AlertKind, merchant: Option<&str>, state: AlertState) -> Alert {
        Alert {
            id: "00112233aabbccdd".into(),
            key: AlertKey {
                kind,
                rule: Some(AlertRule {
                    domain: "default".into(),
                    rule: "plan".into(),
                }),
                subject: merchant.map(|merchant| Arc::new([("merchant".to_owned(), merchant.to_owned())].into())),
            },
            state,
            since: 1_700_000_000_000,
            resolved_at: (state == AlertState::Resolved).then_some(1_700_000_060_500),
            summary: "300 denials".into(),
            value: 300,
            baseline: 20,
        }
    }

    fn webhook(secret: &str) -> Webhook {
        Webhook {
            name: "ops".into(),
            url: WebhookUrl::parse("https://hooks.example/", false).expect("a URL"),
            secret: WebhookSecret::new(secret).expect("long enough"),
            allow_private: false,
        }
    }

    fn rendered(alerts: Vec<Alert>) -> Value {
        let message = AlertMessage {
            alerts,
            left_out: 30,
            is_digest: false,
        };
        let envelope = Envelope {
            instance: "0011".into(),
            external_url: "https://gate.example".into(),
            revision: 7,
            audit_end: Some((9, "ab".repeat(32))),
            ..Envelope::default()
        };
        serde_json::from_slice(&render(&webhook("0123456789abcdef"), &message, &envelope)).expect("it is JSON")
    }

    #[test]
    fn a_message_has_the_members_of_alertmanager_and_ours() {
        let body = rendered(vec![
            alert(AlertKind::DenialsJump, None, AlertState::Resolved),
            alert(AlertKind::SubjectJump, Some("merchant-42"), AlertState::Firing),
        ]);
        let labels = json!({ "severity": "warning", "domain": "default", "rule": "plan" });
        for (member, expected) in [
            ("version", json!("4")),
            ("status", json!("firing")),
            ("receiver", json!("ops")),
            ("truncatedAlerts", json!(30)),
            ("commonLabels", labels),
            ("externalURL", json!("https://gate.example")),
        ] {
            assert_eq!(body[member], expected, "{member}");
        }
        assert_eq!(body["alerts"][0]["endsAt"], "2023-11-14T22:14:20.500Z");
        assert_eq!(body["alerts"][0]["status"], "resolved");
        let firing = &body["alerts"][1];
        assert_eq!(firing["startsAt"], "2023-11-14T22:13:20.000Z");
        assert_eq!(firing["endsAt"], "0001-01-01T00:00:00Z");
        assert_eq!(firing["labels"]["alertname"], "subject_jump");
        assert_eq!(firing["labels"]["subject"], "merchant=me***");
        let over = rendered(vec![alert(AlertKind::DenialsJump, None, AlertState::Resolved)]);
        assert_eq!(over["status"], "resolved");
        assert_eq!(body["tollgate"]["revision"], 7);
        assert_eq!(body["tollgate"]["audit"], json!({ "seq": 9, "hash": "ab".repeat(32) }));
    }

    #[test]
    fn a_fingerprint_is_that_of_the_key_and_the_receiver() {
        let of = |alert: &Alert, secret| fingerprint(&alert.key, &webhook(secret).secret);
        let firing = alert(AlertKind::SubjectJump, Some("m_42"), AlertState::Firing);
        let first = of(&firing, "0123456789abcdef");
        assert_eq!(first.len(), 16);
        // Another process, and the end of it.
        let again = Alert {
            id: "ffffffffffffffff".into(),
            state: AlertState::Resolved,
            value: 7,
            ..firing.clone()
        };
        assert_eq!(of(&again, "0123456789abcdef"), first);
        let others = [
            of(&firing, "another secret of it"),
            of(
                &alert(AlertKind::SubjectJump, Some("m_43"), AlertState::Firing),
                "0123456789abcdef",
            ),
            of(
                &alert(AlertKind::SubjectJump, None, AlertState::Firing),
                "0123456789abcdef",
            ),
            of(
                &alert(AlertKind::DenialsJump, Some("m_42"), AlertState::Firing),
                "0123456789abcdef",
            ),
        ];
        assert!(!others.contains(&first), "{others:?}");
    }
}
