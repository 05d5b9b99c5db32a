//! The settings that name rules.

mod envoy;

#[cfg(test)]
pub(crate) use self::envoy::RATELIMIT_KEYS;
pub(crate) use self::envoy::RatelimitRules;
