//! Finds the rules an attempt may meet without trying them all.
//!
//! Every rule hangs on hooks that an attempt must touch to meet it: the exact values of one of its conditions, the
//! beginning of a glob, or an attribute that has to be there. Of all its conditions the one is taken whose hooks the fewest
//! rules could use, so the rules that an attempt touches and does not meet stay few. What is touched is then tested in full.

use super::attempt::Attempt;
use super::few::Few;
use super::rule::{Mode, Rule, Test};
use std::collections::HashMap;

/// The rules that are asked, by domain.
#[derive(Debug)]
pub(crate) struct Index {
    /// Sorted by name.
    domains: Box<[(Box<str>, Domain)]>,
}

/// The rules of one domain, as places in the list of all rules.
#[derive(Debug, Default)]
struct Domain {
    /// Nothing needs to be there for these.
    always: Vec<u32>,
    /// By the attribute they hang on, sorted by name.
    attributes: Vec<(Box<str>, Hooks)>,
}

/// The rules that hang on one attribute. The maps are keyed with a secret of their own: values are chosen by callers.
#[derive(Debug, Default)]
struct Hooks {
    /// It must be there.
    present: Vec<u32>,
    /// It must be this.
    exact: HashMap<Box<[u8]>, Vec<u32>>,
    /// It must begin with this: for each length of a beginning, the beginnings.
    begins: Vec<(usize, Beginnings)>,
}

/// The rules that hang on beginnings of one length.
type Beginnings = HashMap<Box<[u8]>, Vec<u32>>;

/// One thing an attempt must touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Hook<'r> {
    Exact(&'r str, &'r [u8]),
    Begins(&'r str, &'r [u8]),
    Present(&'r str),
}

/// The rules that were touched. Few have more.
pub(crate) type Candidates = Few<u32, 16>;

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let asked = || {
            rules
                .iter()
                .zip(0_u32..)
                .filter(|(rule, _)| rule.mode != Mode::Disabled)
        };
        let mut users: HashMap<(&str, Hook<'_>), usize> = HashMap::new();
        for (rule, _) in asked() {
            for hook in ways(rule).into_iter().flatten() {
                *users.entry((&rule.domain, hook)).or_default() += 1;
            }
        }
        let mut domains: HashMap<&str, (Vec<u32>, HashMap<&str, Hooks>)> = HashMap::new();
        for (rule, place) in asked() {
            let (always, attributes) = domains.entry(&rule.domain).or_default();
            let crowd = |hooks: &Vec<Hook<'_>>| {
                let crowds = hooks.iter().map(|hook| users.get(&(&*rule.domain, *hook)).copied());
                (crowds.max(), hooks.iter().map(Hook::looseness).max())
            };
            match ways(rule).into_iter().min_by_key(crowd) {
                None => always.push(place),
                Some(hooks) => {
                    for hook in hooks {
                        attributes.entry(hook.attribute()).or_default().hang(hook, place);
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
    fn new(always: Vec<u32>, attributes: HashMap<&str, Hooks>) -> Self {
        let mut attributes: Vec<(Box<str>, Hooks)> = attributes
            .into_iter()
            .map(|(name, hooks)| (name.into(), hooks))
            .collect();
        attributes.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Self { always, attributes }
    }
}

impl Hooks {
    fn hang(&mut self, hook: Hook<'_>, rule: u32) {
        let list = match hook {
            Hook::Present(_) => &mut self.present,
            Hook::Exact(_, value) => self.exact.entry(value.into()).or_default(),
            Hook::Begins(_, with) => {
                let place = self.begins.iter().position(|(length, _)| *length == with.len());
                let place = place.unwrap_or_else(|| {
                    self.begins.push((with.len(), HashMap::new()));
                    self.begins.len() - 1
                });
                match self.begins.get_mut(place) {
                    Some((_, beginnings)) => beginnings.entry(with.into()).or_default(),
                    None => &mut self.present,
                }
            }
        };
        if list.last() != Some(&rule) {
            list.push(rule);
        }
    }

    #[inline]
    fn touch(&self, value: &[u8], found: &mut Candidates) {
        found.extend(&self.present);
        if !self.exact.is_empty()
            && let Some(rules) = self.exact.get(value)
        {
            found.extend(rules);
        }
        for (length, beginnings) in &self.begins {
            if let Some(rules) = value.get(..*length).and_then(|beginning| beginnings.get(beginning)) {
                found.extend(rules);
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

/// For each demand of a rule that can be hung up, the hooks of which an attempt must touch one.
fn ways(rule: &Rule) -> Vec<Vec<Hook<'_>>> {
    let conditions = rule
        .when
        .iter()
        .filter_map(|condition| hooks(&condition.attribute, &condition.test));
    let dimensions = rule
        .per
        .iter()
        .map(|dimension| vec![Hook::Present(&dimension.attribute)]);
    conditions.chain(dimensions).collect()
}

/// The hooks of one test, or nothing if an attribute that is not there passes it.
fn hooks<'r>(attribute: &'r str, test: &'r Test) -> Option<Vec<Hook<'r>>> {
    Some(match test {
        Test::OneOf(values) => values
            .iter()
            .map(|value| Hook::Exact(attribute, value.as_bytes()))
            .collect(),
        Test::Glob(parts) => match parts.first() {
            Some(beginning) if !beginning.is_empty() => vec![Hook::Begins(attribute, beginning.as_bytes())],
            _ => vec![Hook::Present(attribute)],
        },
        Test::Any(tests) => {
            let each: Option<Vec<_>> = tests.iter().map(|test| hooks(attribute, test)).collect();
            each?.concat()
        }
        Test::Regex(_) | Test::Cidr(_) | Test::Present(true) => vec![Hook::Present(attribute)],
        Test::Present(false) => return None,
    })
}

/// Looks a name up. Names are the rules', few and not a caller's choice, so sorted is faster than hashed.
#[inline]
fn sorted_find<'i, T>(sorted: &'i [(Box<str>, T)], name: &str) -> Option<&'i T> {
    let place = sorted.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
    sorted.get(place).map(|(_, found)| found)
}

#[cfg(test)]
mod tests;
