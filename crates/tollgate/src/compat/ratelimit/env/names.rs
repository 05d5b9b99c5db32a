//! The names of envoyproxy/ratelimit's variables, and the notes on those without an equivalent setting.

use super::RUNTIME_ROOT;

/// True if a variable is one of them.
pub(crate) fn is_known(name: &str) -> bool {
    all().any(|known| known == name)
}

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    let settings = std::iter::once(RUNTIME_ROOT).chain(SETTINGS);
    settings.chain(unsupported().map(|(name, ..)| name))
}

/// Variables without an equivalent, each with what applies instead and the next step.
pub(super) fn unsupported() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let all = UNSUPPORTED.iter();
    all.flat_map(|(names, text, hint)| names.iter().map(move |name| (*name, *text, *hint)))
}

const SETTINGS: [&str; 54] = [
    "CONFIG_TYPE",
    "RUNTIME_SUBDIRECTORY",
    "RUNTIME_APPDIRECTORY",
    "RUNTIME_IGNOREDOTFILES",
    "RUNTIME_WATCH_ROOT",
    "FORCE_START_WITHOUT_INITIAL_CONFIG",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "MERGE_DOMAIN_CONFIG",
    "HOST",
    "PORT",
    "GRPC_HOST",
    "GRPC_PORT",
    "GRPC_UDS",
    "DEBUG_HOST",
    "DEBUG_PORT",
    "GRPC_SERVER_USE_TLS",
    "GRPC_SERVER_TLS_CERT",
    "GRPC_SERVER_TLS_KEY",
    "GRPC_CLIENT_TLS_CACERT",
    "GRPC_CLIENT_TLS_SAN",
    "LOG_LEVEL",
    "LOG_FORMAT",
    "BACKEND_TYPE",
    "REDIS_SOCKET_TYPE",
    "REDIS_TYPE",
    "REDIS_URL",
    "REDIS_AUTH",
    "REDIS_SENTINEL_AUTH",
    "REDIS_TLS",
    "REDIS_TLS_CLIENT_CERT",
    "REDIS_TLS_CLIENT_KEY",
    "REDIS_TLS_CACERT",
    "REDIS_TIMEOUT",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "REDIS_PERSECOND",
    "REDIS_PERSECOND_SOCKET_TYPE",
    "REDIS_PERSECOND_TYPE",
    "REDIS_PERSECOND_URL",
    "REDIS_PERSECOND_AUTH",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    "REDIS_PERSECOND_TLS",
    "REDIS_PERSECOND_TIMEOUT",
    "CACHE_KEY_PREFIX",
    "EXPIRATION_JITTER_MAX_SECONDS",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "NEAR_LIMIT_RATIO",
    "SHADOW_MODE",
    "QUOTA_MODE",
    "RESPONSE_DYNAMIC_METADATA",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "LIMIT_LIMIT_HEADER",
    "LIMIT_REMAINING_HEADER",
    "LIMIT_RESET_HEADER",
];

/// Variables that share a note: what applies instead, and the next step.
type Group = (&'static [&'static str], &'static str, &'static str);

const UNSUPPORTED: [Group; 10] = [
    (
        &[
            "CONFIG_GRPC_XDS_NODE_ID",
            "CONFIG_GRPC_XDS_NODE_METADATA",
            "CONFIG_GRPC_XDS_SERVER_URL",
            "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "CONFIG_GRPC_XDS_SERVER_USE_TLS",
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
            "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
            "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
            "XDS_CLIENT_BACKOFF_JITTER",
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        ],
        "limits are not taken over xDS; there is no equivalent",
        "write them into files below RUNTIME_ROOT: a changed file is taken within two seconds",
    ),
    (
        &["USE_STATSD", "STATSD_HOST", "STATSD_PORT", "STATS_FLUSH_INTERVAL"],
        "figures are not sent to statsd",
        "fetch them: `/metrics` on the HTTP port, in the format of Prometheus, or `/stats` on the debug port",
    ),
    (
        &["USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS", "EXTRA_TAGS"],
        "figures are not sent to DogStatsD, and have no tags of your own",
        "let the Datadog agent fetch `/metrics` on the HTTP port, and add tags there",
    ),
    (
        &[
            "USE_PROMETHEUS",
            "PROMETHEUS_ADDR",
            "PROMETHEUS_PATH",
            "PROMETHEUS_MAPPER_YAML",
        ],
        "figures for Prometheus are at `/metrics` on the HTTP port, under the names that they have there if USE_PROMETHEUS is \
         set; no other port is opened, and no file maps them to others",
        "let Prometheus fetch them there, and relabel there",
    ),
    (
        &["DISABLE_STATS"],
        "figures are always counted: they have a bound, and cost no more than an addition",
        "leave it out",
    ),
    (
        &[
            "MEMCACHE_HOST_PORT",
            "MEMCACHE_MAX_IDLE_CONNS",
            "MEMCACHE_SRV",
            "MEMCACHE_SRV_REFRESH",
            "MEMCACHE_TLS",
            "MEMCACHE_TLS_CLIENT_CERT",
            "MEMCACHE_TLS_CLIENT_KEY",
            "MEMCACHE_TLS_CACERT",
            "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
        ],
        "counters are not kept in memcached; there is no equivalent",
        "keep them on Redis or Valkey: `REDIS_SOCKET_TYPE=tcp REDIS_URL=host:6379`",
    ),
    (
        &[
            "TRACING_ENABLED",
            "TRACING_SERVICE_NAME",
            "TRACING_SERVICE_NAMESPACE",
            "TRACING_SERVICE_INSTANCE_ID",
            "TRACING_EXPORTER_PROTOCOL",
            "TRACING_SAMPLING_RATE",
        ],
        "no traces are sent; there is no equivalent",
        "Envoy's own span of the call tells how long it took; `/metrics` has `tollgate_decision_seconds`",
    ),
    (
        &[
            "REDIS_POOL_SIZE",
            "REDIS_PERSECOND_POOL_SIZE",
            "REDIS_PIPELINE_WINDOW",
            "REDIS_PIPELINE_LIMIT",
            "REDIS_PERSECOND_PIPELINE_WINDOW",
            "REDIS_PERSECOND_PIPELINE_LIMIT",
            "REDIS_CLUSTER_PIPELINE_PARALLELISM",
            "REDIS_POOL_ON_EMPTY_BEHAVIOR",
            "REDIS_POOL_ON_EMPTY_WAIT_DURATION",
            "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
            "REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION",
            "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
        ],
        "there is no pool to set: all that waits for a server goes to it together, and a call that takes longer than \
         `store.deadline` is given up",
        "leave it out; a slow network may need `REDIS_TIMEOUT=50ms`",
    ),
    (
        &["REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"],
        "the name of a server is always verified",
        "let its certificate hold the name in REDIS_URL",
    ),
    (
        &["GRPC_MAX_CONNECTION_AGE", "GRPC_MAX_CONNECTION_AGE_GRACE"],
        "a gRPC connection lives for at most an hour, and calls in flight are answered then",
        "leave it out",
    ),
];
