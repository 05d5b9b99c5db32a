//! Variables of the store, and of the counters shared with envoyproxy/ratelimit.

use super::EnvReader;
use std::time::Duration;
use tollgate_limiter::core::yaml::NodeKind;
use tollgate_limiter::store::redis::Redis;

/// The variables of one Redis.
struct RedisVariables {
    url: &'static str,
    socket: &'static str,
    kind: &'static str,
    auth: &'static str,
    sentinel_auth: &'static str,
    tls: &'static str,
    timeout: &'static str,
}

const MAIN: RedisVariables = RedisVariables {
    url: "REDIS_URL",
    socket: "REDIS_SOCKET_TYPE",
    kind: "REDIS_TYPE",
    auth: "REDIS_AUTH",
    sentinel_auth: "REDIS_SENTINEL_AUTH",
    tls: "REDIS_TLS",
    timeout: "REDIS_TIMEOUT",
};

const PER_SECOND: RedisVariables = RedisVariables {
    url: "REDIS_PERSECOND_URL",
    socket: "REDIS_PERSECOND_SOCKET_TYPE",
    kind: "REDIS_PERSECOND_TYPE",
    auth: "REDIS_PERSECOND_AUTH",
    sentinel_auth: "REDIS_PERSECOND_SENTINEL_AUTH",
    tls: "REDIS_PERSECOND_TLS",
    timeout: "REDIS_PERSECOND_TIMEOUT",
};

impl EnvReader<'_> {
    pub(super) fn store(&mut self) {
        match self.find("BACKEND_TYPE") {
            None | Some("redis") => {}
            Some("memcache") => {
                return self.note(
                    "BACKEND_TYPE",
                    "counters are not kept in memcached: each instance keeps its own in memory",
                    "keep them on Redis or Valkey: `BACKEND_TYPE=redis REDIS_SOCKET_TYPE=tcp REDIS_URL=host:6379`",
                );
            }
            Some(_) => {
                return self.error("BACKEND_TYPE", "unknown backend", "write `BACKEND_TYPE=redis`");
            }
        }
        if self.find(MAIN.url).is_none() {
            return self.note(
                MAIN.url,
                "not set, so each instance keeps its own counters in memory",
                "name a server for all of them: `REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379`",
            );
        }
        self.redis(&["store"], &MAIN);
        self.flags(&[("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "healthy_with_store")]);
        self.counters();
    }

    /// One Redis, at the path of a setting.
    fn redis(&mut self, path: &[&str], names: &RedisVariables) {
        let has_tls = self.flag(names.tls) == Some(true);
        let Some(url) = self.url(names, has_tls) else { return };
        if Redis::options(&url).is_err() {
            let hint = format!("write for example `{}=tcp {}=redis:6379`", names.socket, names.url);
            return self.error(names.url, "this is not the address of a server", hint);
        }
        let at = |key| [path, &[key]].concat();
        self.put(&at("url"), names.url, NodeKind::Text(url.into()));
        if let Some(auth) = self.find(names.sentinel_auth) {
            let password = match auth.split_once(':') {
                Some((_, password)) => {
                    let text = "sentinels get a password and no user name";
                    self.note(names.sentinel_auth, text, "give their default user that password");
                    password
                }
                None => auth,
            };
            self.put(
                &at("sentinel_password"),
                names.sentinel_auth,
                NodeKind::Text(password.into()),
            );
        }
        self.timeout(&at("deadline"), names);
        if has_tls {
            for (name, key) in [
                ("REDIS_TLS_CACERT", "ca"),
                ("REDIS_TLS_CLIENT_CERT", "cert"),
                ("REDIS_TLS_CLIENT_KEY", "key"),
            ] {
                if let Some(file) = self.find(name) {
                    self.put(&[&at("tls")[..], &[key]].concat(), name, NodeKind::Text(file.into()));
                }
            }
        }
    }

    /// The timeout of a call, which is the deadline of the store. The server for windows of a second has that of the other
    /// one unless it has its own.
    fn timeout(&mut self, path: &[&str], names: &RedisVariables) {
        let name = match self.find(names.timeout) {
            Some(_) => names.timeout,
            None => MAIN.timeout,
        };
        let Some(text) = self.find(name) else { return };
        let Some(timeout) = go_duration(text).filter(|timeout| !timeout.is_zero()) else {
            let hint = format!("write for example `{name}=50ms`");
            return self.error(name, "expected a duration above 0", hint);
        };
        if timeout > TIMEOUT_LONG && name == names.timeout {
            self.note(
                name,
                "while Redis does not answer, a call waits so long before it is decided here; Envoy, whose own timeout is \
                 20 ms by default, will not",
                format!("write three round trips to Redis, such as `{name}=20ms`; /readyz says if that is too short"),
            );
        }
        let timeout = timeout.min(TIMEOUT_MAX);
        let text = format!("{}us", timeout.as_micros());
        self.put(path, name, NodeKind::Text(text.into()));
    }

    /// The store URL that the variables describe.
    fn url(&mut self, names: &RedisVariables, has_tls: bool) -> Option<String> {
        let Some(address) = self.find(names.url) else {
            let hint = format!("write for example `{}=tcp {}=redis:6379`", names.socket, names.url);
            self.error(names.url, "no server is named", hint);
            return None;
        };
        let (has_tls, address) = match address.split_once("://") {
            Some(("rediss", rest)) => (true, rest),
            Some(("redis", rest)) => (has_tls, rest),
            _ => (has_tls, address),
        };
        let scheme = if has_tls { "rediss" } else { "redis" };
        let auth = self.find(names.auth).map(|auth| match auth.split_once(':') {
            Some((user, password)) => (percent_encode(user), percent_encode(password)),
            None => (String::new(), percent_encode(auth)),
        });
        let user = auth
            .as_ref()
            .map_or(String::new(), |(user, password)| format!("{user}:{password}@"));
        let kind = self.find(names.kind).unwrap_or("SINGLE").to_ascii_uppercase();
        match kind.as_str() {
            "SINGLE" if self.is_socket(address, names) => {
                let query = auth.map_or(String::new(), |(user, password)| match user.as_str() {
                    "" => format!("?pass={password}"),
                    user => format!("?user={user}&pass={password}"),
                });
                Some(format!("redis+unix://{address}{query}"))
            }
            "SINGLE" => Some(format!("{scheme}://{user}{address}")),
            "CLUSTER" => Some(format!("{scheme}+cluster://{user}{address}")),
            "SENTINEL" => match address.split_once(',') {
                Some((name, sentinels)) => Some(format!("{scheme}+sentinel://{user}{sentinels}/{name}")),
                None => {
                    let hint = format!("write for example `{}=mymaster,s1:26379,s2:26379`", names.url);
                    self.error(
                        names.url,
                        "expected the name of a primary, and behind it its sentinels",
                        hint,
                    );
                    None
                }
            },
            _ => {
                let hint = format!("write `{0}=SINGLE`, `{0}=SENTINEL` or `{0}=CLUSTER`", names.kind);
                self.error(names.kind, "this is not a kind of Redis", hint);
                None
            }
        }
    }

    /// True if the address is a Unix socket: many leave the socket type of a host at its default, `unix`.
    fn is_socket(&self, address: &str, names: &RedisVariables) -> bool {
        address.starts_with('/') || (self.find(names.socket) == Some("unix") && !address.contains(':'))
    }

    /// The settings for counting in the same keys as a running envoyproxy/ratelimit.
    fn counters(&mut self) {
        let at = |key| ["envoy_rules", "counters", key];
        let prefix = self.find("CACHE_KEY_PREFIX").unwrap_or_default();
        self.put(&at("prefix"), "CACHE_KEY_PREFIX", NodeKind::Text(prefix.into()));
        if let Some(seconds) = self.number("EXPIRATION_JITTER_MAX_SECONDS", "300") {
            let jitter = NodeKind::Text(format!("{seconds}s").into());
            self.put(&at("jitter"), "EXPIRATION_JITTER_MAX_SECONDS", jitter);
        }
        if let Some(bytes) = self.number("LOCAL_CACHE_SIZE_IN_BYTES", "1000000") {
            let bytes = NodeKind::Number(bytes.to_string().into());
            self.put(&at("local_cache"), "LOCAL_CACHE_SIZE_IN_BYTES", bytes);
        }
        if let Some(stops) = self.flag("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") {
            let name = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT";
            self.put(&at("stop_when_over"), name, NodeKind::Bool(stops));
        }
        if self.flag("REDIS_PERSECOND") == Some(true) {
            self.redis(&at("per_second"), &PER_SECOND);
        }
    }
}

/// A timeout that callers would notice, and the longest deadline of a store.
const TIMEOUT_LONG: Duration = Duration::from_secs(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Parses a duration as Go writes it, such as `1m30s` or `1.5s`. Times of less than a microsecond are zero.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|next: char| !next.is_ascii_digit() && next != '.')?;
        let (number, after) = rest.split_at_checked(end)?;
        let end = after.find(|next: char| next.is_ascii_digit() || next == '.');
        let (unit, after) = after.split_at_checked(end.unwrap_or(after.len()))?;
        let ns_per_unit: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        // More than 18 digits of a fraction are less than a microsecond of any unit.
        let fraction = fraction.get(..18).unwrap_or(fraction);
        let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        let us = u128::from(digits) * ns_per_unit / scale / 1_000;
        total = total.checked_add(Duration::from_micros(u64::try_from(us).ok()?))?;
        rest = after;
    }
    Some(total)
}

/// Percent-encodes a user name or a password for a URL.
fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match plain(byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}
