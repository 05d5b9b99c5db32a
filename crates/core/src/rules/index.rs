//! Finds the rules an attempt may meet without trying them all.
//!
//! Every rule hangs on hooks that an attempt must touch to meet it: the exact values of one of its conditions, the
//! beginning of a glob, or an attribute that has to be there. Of all its conditions the one is taken whose hooks the fewest
//! rules could use, so the rules that an attempt touches and does not meet stay few. What is touched is then tested in full.

use super::attempt::Attempt;
use super::few::Few;
use super::rule::{Mode, Rule, Test};
use super::short::Short;
use std::collections::HashMap;

/// The rules that are asked, by domain.
#[derive(Debug)]
pub(crate) struct Index {
    /// Sorted by name.
    domains: Box<[(Box<str>, Domain)]>,
}

/// The rules of one domain.
#[derive(Debug, Default)]
struct Domain {
    /// Nothing needs to be there for these.
    always: Vec<Candidate>,
    /// By the attribute they hang on, sorted by name.
    attributes: Vec<(Box<str>, Hooks)>,
}

/// The rules that hang on one attribute. The maps are keyed with a secret of their own: values are chosen by callers.
#[derive(Debug, Default)]
struct Hooks {
    /// It must be there.
    present: Vec<Candidate>,
    /// It must be this.
    exact: ByBytes,
    /// It must begin with this: for each length of a beginning, the beginnings.
    begins: Vec<(usize, ByBytes)>,
}

/// The rules that hang on values, or on beginnings of one length. Two of a kind, a ceiling and a limit by subject, is what
/// most endpoints have: they stand in place, as short values do.
type ByBytes = HashMap<Short, Few<Candidate, 2>>;

/// One thing an attempt must touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Hook<'r> {
    Exact(&'r str, &'r [u8]),
    Begins(&'r str, &'r [u8]),
    Present(&'r str),
}

/// A rule that was touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// Its place in the list of all rules.
    pub(crate) rule: u32,
    /// The place of the condition that holds because its hook was touched, or [`Candidate::UNPROVEN`]. With thousands of
    /// rules, testing it again would mostly be waiting for memory.
    pub(crate) proven: u32,
}

impl Candidate {
    /// Every condition is to be tested.
    pub(crate) const UNPROVEN: u32 = u32::MAX;
}

/// The rules that were touched. Few attempts touch more.
pub(crate) type Candidates = Few<Candidate, 16>;

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let asked = || {
            rules
                .iter()
                .zip(0_u32..)
                .filter(|(rule, _)| rule.mode != Mode::Disabled && rule.descriptor.is_none())
        };
        let mut users: HashMap<(&str, Hook<'_>), usize> = HashMap::new();
        for (rule, _) in asked() {
            for (hook, _) in ways(rule).into_iter().flatten() {
                *users.entry((&rule.domain, hook)).or_default() += 1;
            }
        }
        let mut domains: HashMap<&str, (Vec<Candidate>, HashMap<&str, Hooks>)> = HashMap::new();
        for (rule, place) in asked() {
            let (always, attributes) = domains.entry(&rule.domain).or_default();
            let crowd = |hooks: &Way<'_>| {
                let crowds = hooks
                    .iter()
                    .map(|(hook, _)| users.get(&(&*rule.domain, *hook)).copied());
                (crowds.max(), hooks.iter().map(|(hook, _)| hook.looseness()).max())
            };
            match ways(rule).into_iter().min_by_key(crowd) {
                None => always.push(Candidate {
                    rule: place,
                    proven: Candidate::UNPROVEN,
                }),
                Some(hooks) => {
                    for (hook, proven) in hooks {
                        let candidate = Candidate { rule: place, proven };
                        attributes.entry(hook.attribute()).or_default().hang(hook, candidate);
                    }
                }
            }
        }
        let mut domains: Vec<(Box<str>, Domain)> = domains
            .into_iter()
            .map(|(name, (always, attributes))| (name.into(), Domain::new(always, attributes)))
            .collect();
        domains.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Self {
            domains: domains.into(),
        }
    }

    pub(crate) fn has_domain(&self, domain: &str) -> bool {
        sorted_find(&self.domains, domain).is_some()
    }

    /// All rules that `attempt` could meet, and few others, in the order they are written. One that is touched more than
    /// once stands there as often.
    #[inline]
    pub(crate) fn candidates(&self, attempt: &Attempt<'_>) -> Candidates {
        let mut found = Candidates::new();
        let Some(domain) = sorted_find(&self.domains, attempt.domain) else {
            return found;
        };
        found.extend(&domain.always);
        for attribute in attempt.attributes {
            if let Some(hooks) = sorted_find(&domain.attributes, attribute.name) {
                hooks.touch(attribute.value, &mut found);
            }
        }
        found.as_mut_slice().sort_unstable();
        found
    }
}

impl Domain {
    fn new(always: Vec<Candidate>, attributes: HashMap<&str, Hooks>) -> Self {
        let mut attributes: Vec<(Box<str>, Hooks)> = attributes
            .into_iter()
            .map(|(name, hooks)| (name.into(), hooks))
            .collect();
        attributes.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Self { always, attributes }
    }
}

impl Hooks {
    fn hang(&mut self, hook: Hook<'_>, candidate: Candidate) {
        let list = match hook {
            Hook::Present(_) => {
                self.present.push(candidate);
                return;
            }
            Hook::Exact(_, value) => self.exact.entry(value.into()).or_default(),
            Hook::Begins(_, with) => {
                let place = self.begins.iter().position(|(length, _)| *length == with.len());
                let place = place.unwrap_or_else(|| {
                    self.begins.push((with.len(), HashMap::new()));
                    self.begins.len() - 1
                });
                let (_, beginnings) = self.begins.get_mut(place).expect("its length was found or added");
                beginnings.entry(with.into()).or_default()
            }
        };
        list.push(candidate);
    }

    #[inline]
    fn touch(&self, value: &[u8], found: &mut Candidates) {
        found.extend(&self.present);
        if !self.exact.is_empty()
            && let Some(rules) = self.exact.get(value)
        {
            found.extend(rules.as_slice());
        }
        for (length, beginnings) in &self.begins {
            if let Some(rules) = value.get(..*length).and_then(|beginning| beginnings.get(beginning)) {
                found.extend(rules.as_slice());
            }
        }
    }
}

impl<'r> Hook<'r> {
    const fn attribute(&self) -> &'r str {
        match self {
            Self::Exact(name, _) | Self::Begins(name, _) | Self::Present(name) => name,
        }
    }

    /// How many values touch it: where equally many rules could use two hooks, the tighter one is better.
    const fn looseness(&self) -> u8 {
        match self {
            Self::Exact(..) => 0,
            Self::Begins(..) => 1,
            Self::Present(_) => 2,
        }
    }
}

/// The hooks of one demand of a rule: an attempt that meets it touches one of them. Beside each the condition that is then
/// known to hold, if it is.
type Way<'r> = Vec<(Hook<'r>, u32)>;

/// Every demand of a rule that can be hung up.
fn ways(rule: &Rule) -> Vec<Way<'_>> {
    let conditions = rule.when.iter().zip(0..).filter_map(|(condition, place)| {
        let mut way = Vec::new();
        hooks(&condition.attribute, &condition.test, place, &mut way).then_some(way)
    });
    let dimensions = rule
        .per
        .iter()
        .map(|dimension| vec![(Hook::Present(&dimension.attribute), Candidate::UNPROVEN)]);
    conditions.chain(dimensions).collect()
}

/// Adds the hooks of one test of the condition at `place`. False if an attribute that is not there passes it.
fn hooks<'r>(attribute: &'r str, test: &'r Test, place: u32, way: &mut Way<'r>) -> bool {
    match test {
        Test::OneOf(values) => {
            way.extend(
                values
                    .iter()
                    .map(|value| (Hook::Exact(attribute, value.as_bytes()), place)),
            );
        }
        Test::Glob(parts) => way.push(match &**parts {
            [beginning, rest @ ..] if !beginning.is_empty() => {
                let is_all = matches!(rest, [end] if end.is_empty());
                let proven = if is_all { place } else { Candidate::UNPROVEN };
                (Hook::Begins(attribute, beginning.as_bytes()), proven)
            }
            _ => (Hook::Present(attribute), Candidate::UNPROVEN),
        }),
        Test::Any(tests) => return tests.iter().all(|test| hooks(attribute, test, place, way)),
        Test::Present(true) => way.push((Hook::Present(attribute), place)),
        Test::Regex(_) | Test::Cidr(_) => way.push((Hook::Present(attribute), Candidate::UNPROVEN)),
        Test::Present(false) => return false,
    }
    true
}

/// Looks a name up. Names are the rules', few and not a caller's choice, so sorted is faster than hashed.
#[inline]
fn sorted_find<'i, T>(sorted: &'i [(Box<str>, T)], name: &str) -> Option<&'i T> {
    let place = sorted.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
    sorted.get(place).map(|(_, found)| found)
}

#[cfg(test)]
mod tests;
