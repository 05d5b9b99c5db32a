//! What a caller attempts, as every front end says it.

use crate::decision::Cost;

/// One attempt to go on. It meets the rules of its domain whose conditions its attributes fulfil.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Rules and counters of domains are apart.
    pub domain: &'a str,
    /// What is known of it. A name may stand more than once: then it has several values, in this order.
    pub attributes: &'a [Attribute<'a>],
    /// What it costs, before a rule multiplies it.
    pub cost: Cost,
}

/// One thing known of an attempt. Any bytes are just data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Attempt<'a> {
    /// The domain of rules and attempts that name none.
    pub const DOMAIN: &'static str = "default";

    /// The values of an attribute, mostly one or none.
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
