//! The request to be decided, in the form every front end converts to.

use crate::decision::Cost;

/// A request to be decided. It matches the rules of its domain whose conditions its attributes satisfy.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The domain. Domains share no rules and no counters.
    pub domain: &'a str,
    /// The attributes. A repeated name gives an attribute several values, in this order.
    pub attributes: &'a [Attribute<'a>],
    /// The cost, before a rule multiplies it.
    pub cost: Cost,
}

/// One attribute of an attempt. Values are arbitrary bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The name.
    pub name: &'a str,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Attempt<'a> {
    /// The domain of rules and attempts that name none.
    pub const DOMAIN: &'static str = "default";

    /// The values of an attribute, usually one or none.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.attributes
            .iter()
            .filter(move |attribute| attribute.name == name)
            .map(|attribute| attribute.value)
    }

    /// The first value of an attribute.
    pub fn value(&self, name: &str) -> Option<&'a [u8]> {
        self.values(name).next()
    }
}
