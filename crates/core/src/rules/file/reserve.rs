//! Parser of the reserve of a rule.

use super::RulesParser;
use super::algorithm::AlgorithmOptions;
use crate::problem::Problems;
use crate::quantity::{Share, parse_share};
use crate::rules::model::{Condition, Reserve, ReserveTerms};
use crate::yaml::{Fields, Node};

/// The keys of a reserve.
pub(in crate::rules) const RESERVE_KEYS: [&str; 3] = ["share", "for", "lend"];
/// The algorithms whose burst can be shorter for some attempts.
const LENDING: [&str; 3] = ["token_bucket", "gcra", "leaky_bucket"];

impl RulesParser {
    /// Parses the reserve of a rule. None if it has none, or an invalid one.
    pub(super) fn parse_reserve(&mut self, rule: &Fields<'_>, algorithm: AlgorithmOptions) -> Option<Reserve> {
        let (key, node) = rule.entry("reserve")?;
        let errors = self.problems.error_count();
        if let Some((option, _)) = rule.entry("min_interval") {
            self.problems.error_with(
                &option.location,
                "a rule with `min_interval` has no reserve: its gap would hold back critical attempts too",
                "remove `min_interval` or `reserve`, or make two rules of it",
            );
        }
        if rule.find("experiment").is_some() {
            self.problems.error_with(
                &key.location,
                "a rule with an experiment has no reserve: its variants count on their own",
                "remove `experiment` or `reserve`",
            );
        }
        if algorithm.is_shaping() {
            self.problems.error_with(
                &key.location,
                "a queue that delays has no reserve: critical attempts would wait behind all others",
                "remove `shape` or `reserve`",
            );
        }
        let fields = node.fields("a reserve", &RESERVE_KEYS, &mut self.problems)?;
        let share = fields
            .require("a reserve", "share", "share: 20%", &mut self.problems)
            .and_then(|node| parse_reserved_share(node, &mut self.problems));
        let conditions = fields
            .require("a reserve", "for", "for: { priority: critical }", &mut self.problems)
            .map(|node| self.parse_for(node));
        let lend = fields
            .find("lend")
            .and_then(|node| Some((node, node.flag(&mut self.problems)?)));
        if let Some((node, true)) = lend
            && !LENDING.contains(&algorithm.name())
        {
            self.problems.error_with(
                &node.location,
                match algorithm.name() {
                    "concurrency" => "`concurrency` cannot lend: running work cannot be recalled".to_owned(),
                    name => format!("`{name}` cannot lend: it has no burst to shorten"),
                },
                "remove `lend`; `token_bucket`, `gcra` and `leaky_bucket` can",
            );
        }
        let (share, conditions) = (share?, conditions?);
        (self.problems.error_count() == errors).then(|| Reserve {
            conditions,
            terms: ReserveTerms {
                share,
                lend: lend.is_some_and(|(_, lend)| lend),
            },
        })
    }

    /// Parses the conditions of those that may use a reserve.
    fn parse_for(&mut self, node: &Node) -> Box<[Condition]> {
        let errors = self.problems.error_count();
        let conditions = self.parse_when(node);
        if conditions.is_empty() && self.problems.error_count() == errors {
            self.problems.error_with(
                &node.location,
                "a reserve for every attempt keeps nothing",
                "say which attempts may use it: `for: { priority: critical }`",
            );
        }
        conditions
    }
}

fn parse_reserved_share(node: &Node, problems: &mut Problems) -> Option<Share> {
    let share = node.read("a share like 20%", parse_share, problems)?;
    if share == Share::NONE {
        problems.error_with(
            &node.location,
            "a reserve of 0% keeps nothing",
            "write a share like 20%, or remove `reserve`",
        );
        return None;
    }
    Some(share)
}
