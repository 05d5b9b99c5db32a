//! The JSON Schema of settings and rules, for editors.

use serde_json::{Map, Value, json};
use tollgate_limiter::core::rules;

/// The schema of `tollgate.yaml` and of rule files. Validation goes further than it can express.
pub fn schema() -> Value {
    let mut rules_schema = object(rules::SCHEMA);
    let mut definitions = match rules_schema.remove("$defs") {
        Some(Value::Object(definitions)) => definitions,
        _ => Map::new(),
    };
    let dialect = rules_schema.remove("$schema");
    definitions.insert("rules_file".into(), rules_schema.into());
    definitions.extend(object(SETTINGS));
    json!({
        "$schema": dialect,
        "title": "Tollgate settings, or a Tollgate rule file",
        "anyOf": [{ "$ref": "#/$defs/settings" }, { "$ref": "#/$defs/rules_file" }],
        "$defs": definitions,
    })
}

/// Parses a schema of this program.
fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).expect("the schemas in this program are JSON objects, as its tests see")
}

/// The definitions of settings.
const SETTINGS: &str = include_str!("schema/settings.schema.json");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::ratelimit;
    use crate::compat::ratelimit::files::RATELIMIT_KEYS;
    use crate::config::{
        AnonymousAccess, KEYS, SubjectDisplay, admin, alerts, control, derive, server, store, telemetry,
    };
    use crate::server::auth::tokens::Rights;
    use crate::server::http::{Dialect, Gateway};

    /// The keys or the enum values at a path of the schema.
    fn entries(schema: &Value, path: &str) -> Vec<String> {
        let found = schema.pointer(path).unwrap_or_else(|| panic!("nothing at {path}"));
        let mut names: Vec<String> = match found {
            Value::Object(entries) => entries.keys().cloned().collect(),
            found => found
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(Value::as_str)
                .map(Into::into)
                .collect(),
        };
        names.sort_unstable();
        names
    }

    #[test]
    fn the_schema_has_the_keys_and_words_that_the_reader_knows() {
        let schema = schema();
        let dialects = Dialect::NAMES.map(|(name, _)| name);
        let rights = Rights::NAMES.map(|(name, _)| name);
        let store_keys = [&store::COMMON_KEYS[..], &store::MEMORY_KEYS, &store::REDIS_KEYS].concat();
        let ratelimit_keys = format!("/$defs/settings/properties/{}/oneOf/2/properties", ratelimit::SETTING);
        for (path, known) in [
            ("/$defs/settings/properties", &KEYS[..]),
            ("/$defs/settings/properties/server/properties", &server::KEYS),
            (
                "/$defs/settings/properties/server/properties/limits/properties",
                &server::LIMITS,
            ),
            ("/$defs/settings/properties/store/oneOf/2/properties", &store_keys),
            (
                "/$defs/settings/properties/forward_auth/properties/gateway/enum",
                &Gateway::NAMES.map(|(name, _)| name),
            ),
            (&ratelimit_keys, &RATELIMIT_KEYS),
            (&format!("{ratelimit_keys}/counters/properties"), &store::COUNTERS),
            ("/$defs/listener/enum", &server::LISTENERS.map(|(name, _)| name)),
            ("/$defs/settings/properties/control/properties", &control::KEYS),
            (
                "/$defs/settings/properties/control/properties/edits/enum",
                &control::EDITS.map(|(name, _)| name),
            ),
            ("/$defs/settings/properties/alerts/properties", &alerts::KEYS),
            (
                "/$defs/settings/properties/alerts/properties/webhooks/items/properties",
                &alerts::WEBHOOK_KEYS,
            ),
            ("/$defs/settings/properties/telemetry/properties", &telemetry::KEYS),
            (
                "/$defs/settings/properties/telemetry/properties/otlp/properties",
                &telemetry::OTLP_KEYS,
            ),
            ("/$defs/settings/properties/admin/properties", &admin::KEYS),
            (
                "/$defs/settings/properties/admin/properties/tokens/items/properties",
                &admin::TOKEN_KEYS,
            ),
            (
                "/$defs/settings/properties/admin/properties/tokens/items/properties/role/enum",
                &admin::ROLES.map(|(name, _)| name),
            ),
            (
                "/$defs/settings/properties/admin/properties/anonymous/enum",
                &AnonymousAccess::NAMES.map(|(name, _)| name),
            ),
            (
                "/$defs/settings/properties/admin/properties/subjects/enum",
                &SubjectDisplay::NAMES.map(|(name, _)| name),
            ),
            (
                "/$defs/settings/properties/derive/additionalProperties/properties",
                &derive::KEYS,
            ),
            ("/$defs/right/enum", &rights),
            ("/$defs/dialect/enum", &[&dialects[..], &["none"]].concat()),
        ] {
            let mut known = known.to_vec();
            known.sort_unstable();
            assert_eq!(entries(&schema, path), known, "{path}");
        }
    }

    #[test]
    fn every_reference_in_the_schema_leads_somewhere() {
        fn walk(schema: &Value, value: &Value, found: &mut usize) {
            match value {
                Value::Object(entries) => {
                    if let Some(Value::String(to)) = entries.get("$ref") {
                        let path = to.strip_prefix('#').expect("all are within it");
                        assert!(schema.pointer(path).is_some(), "{to} leads nowhere");
                        *found += 1;
                    }
                    entries.values().for_each(|value| walk(schema, value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| walk(schema, value, found)),
                _ => {}
            }
        }
        let (schema, mut found) = (schema(), 0);
        walk(&schema, &schema, &mut found);
        assert!(found > 20, "{found}");
    }
}
