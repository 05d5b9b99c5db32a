//! The terms of a row: parsed with the algorithm of its rule, as a limit in a rules file is.

use crate::limit::Limit;
use crate::problem::ValueError;
use crate::quantity::{Period, parse_quota};
use crate::rules::file::algorithm::{AlgorithmOptions, ParsedLimit};
use crate::rules::file::limits::WINDOWS_MAX;
use crate::rules::model::{CounterId, Terms, Variant, Windows};
use crate::units::time::Micros;
use crate::yaml::excerpt;
use std::sync::Arc;

/// The terms of a row.
#[derive(Clone, Debug)]
pub(in crate::rules) enum RowTerms {
    /// One window at most, for both variants. Inline: most rows have such, and a pointer would cost a part of planning.
    One(Terms),
    /// All others. Rows that are loaded together share equal ones.
    Shared(Arc<SharedTerms>),
}

/// Terms of several windows, or of a rule with an experiment.
#[derive(Debug)]
pub(in crate::rules) struct SharedTerms {
    control: Terms,
    /// Those of the rule's experiment, if it has one.
    experiment: Option<Terms>,
}

/// Terms without their counters.
pub(super) enum ParsedTerms {
    Unlimited,
    Banned(Option<Micros>),
    One(Limit),
    Several(Vec<(Limit, Period)>),
}

/// The maximum length of terms: more than any valid list of windows has.
const TEXT_BYTES_MAX: usize = 1_024;

impl RowTerms {
    pub(super) fn new(control: Terms, experiment: Option<Terms>) -> Self {
        match (&control, &experiment) {
            (Terms::Limited(Windows::Several(_)), _) | (_, Some(_)) => {
                Self::Shared(Arc::new(SharedTerms { control, experiment }))
            }
            _ => Self::One(control),
        }
    }

    #[inline]
    pub(super) fn select(&self, variant: Variant) -> &Terms {
        match self {
            Self::One(terms) => terms,
            Self::Shared(shared) => match (&shared.experiment, variant) {
                (Some(experiment), Variant::Experiment) => experiment,
                _ => &shared.control,
            },
        }
    }

    /// Calls `each` for every window's counter.
    pub(super) fn for_each_counter(&self, mut each: impl FnMut(CounterId)) {
        let (control, experiment) = match self {
            Self::One(terms) => (terms, None),
            Self::Shared(shared) => (&shared.control, shared.experiment.as_ref()),
        };
        for terms in std::iter::once(control).chain(experiment) {
            if let Terms::Limited(windows) = terms {
                let all = windows.as_slice().iter().chain(windows.others());
                all.for_each(|window| each(window.counter));
            }
        }
    }
}

impl ParsedTerms {
    /// Its limits.
    pub(super) fn limits(&self) -> impl Iterator<Item = &Limit> {
        let (one, several) = match self {
            Self::One(limit) => (Some(limit), &[][..]),
            Self::Several(windows) => (None, windows.as_slice()),
            Self::Unlimited | Self::Banned(_) => (None, &[][..]),
        };
        one.into_iter().chain(several.iter().map(|(limit, _)| limit))
    }

    /// Parses one limit, or a list of windows: `[10/s, 100/min]`.
    pub(super) fn parse(text: &str, algorithm: &AlgorithmOptions) -> Result<Self, ValueError> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return Err(ValueError::new(
                format!("`{}` is not a limit", excerpt(text)),
                format!("write `100/min`, or up to {WINDOWS_MAX} windows: `[10/s, 100/min]`"),
            ));
        }
        let list = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let Some(list) = list else {
            return Ok(match parse_limit(text, algorithm)? {
                ParsedLimit::Unlimited => Self::Unlimited,
                ParsedLimit::Banned(period) => Self::Banned(period),
                ParsedLimit::Limited(limit, _) => Self::One(limit),
            });
        };
        let items: Vec<&str> = match list.trim() {
            "" => Vec::new(),
            list => list.split(',').collect(),
        };
        if items.is_empty() || items.len() > WINDOWS_MAX {
            return Err(ValueError::new(
                format!("a limit is a list of {} windows", items.len()),
                format!("give one to {WINDOWS_MAX}: `[10/s, 100/min]`"),
            ));
        }
        let mut windows: Vec<(Limit, Period)> = Vec::with_capacity(items.len());
        for item in items {
            let (limit, period) = parse_window(item, algorithm)?;
            if windows.iter().any(|(_, known)| *known == period) {
                return Err(ValueError::new(
                    format!("two windows of {} in one limit", period.name()),
                    "remove one; the smaller one is enough",
                ));
            }
            windows.push((limit, period));
        }
        Ok(Self::Several(windows))
    }
}

fn parse_limit(text: &str, algorithm: &AlgorithmOptions) -> Result<ParsedLimit, ValueError> {
    parse_quota(text).and_then(|quota| algorithm.limit(quota))
}

/// Parses one window of a list.
fn parse_window(text: &str, algorithm: &AlgorithmOptions) -> Result<(Limit, Period), ValueError> {
    match parse_limit(text, algorithm)? {
        ParsedLimit::Limited(limit, Some(period)) => Ok((limit, period)),
        ParsedLimit::Limited(_, None) => Err(ValueError::new(
            "`concurrency` has no windows",
            "write one number alone: `20`",
        )),
        ParsedLimit::Banned(_) | ParsedLimit::Unlimited => Err(ValueError::new(
            "a ban or `unlimited` cannot be one of several windows",
            "write it alone, without a list",
        )),
    }
}
