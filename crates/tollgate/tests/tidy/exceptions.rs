//! What the rules about words let pass, each with its reason.

/// A violation that stays.
pub(crate) struct Exception {
    /// The function of the rule.
    pub(crate) rule: &'static str,
    /// The start of the path.
    pub(crate) path: &'static str,
    /// A part of the violation's text.
    pub(crate) what: &'static str,
    #[expect(dead_code, reason = "for the reader of this list")]
    pub(crate) reason: &'static str,
}

pub(crate) const ALL: &[Exception] = &[];
