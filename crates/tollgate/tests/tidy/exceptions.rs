//! Exceptions to the rules about words and the tree, each with its reason.

/// A violation that stays.
pub(crate) struct Exception {
    /// The function of the rule.
    rule: &'static str,
    /// The start of the path.
    path: &'static str,
    /// The name in question; any if empty.
    name: &'static str,
    #[expect(dead_code, reason = "for the reader of this list")]
    reason: &'static str,
}

const ALL: [Exception; 2] = [
    Exception {
        rule: "public_types",
        path: "crates/limiter/src/limits.rs",
        name: "",
        reason: "a builder is named after the core type it builds",
    },
    Exception {
        rule: "public_types",
        path: "crates/core/src/algorithm/",
        name: "State",
        reason: "every algorithm has its state",
    },
];

/// True if a public type may have a name that another one has.
pub(crate) fn is_shared_type_name(path: &str, name: &str) -> bool {
    let mut exceptions = ALL.iter().filter(|exception| exception.rule == "public_types");
    exceptions
        .any(|exception| path.starts_with(exception.path) && (exception.name.is_empty() || exception.name == name))
}

/// The violations that no exception covers.
pub(crate) fn excepted(violations: Vec<String>, rule: &str) -> Vec<String> {
    let covers = |exception: &Exception, violation: &str| {
        exception.rule == rule && violation.starts_with(exception.path) && violation.contains(exception.name)
    };
    violations
        .into_iter()
        .filter(|violation| !ALL.iter().any(|exception| covers(exception, violation)))
        .collect()
}
