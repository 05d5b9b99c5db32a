//! Regular expressions of rules, under a memory budget: each is bounded, and so is their sum.

use crate::problem::ValueError;
use crate::yaml::excerpt;
use regex::bytes::{Regex, RegexBuilder};

/// Compiles regular expressions until their budget is spent.
#[derive(Debug)]
pub(super) struct Expressions {
    bytes_left: usize,
}

/// Size limits tried in turn. The first that suffices is charged to the budget, since the library does not report the
/// actual size.
const SIZES: [usize; 3] = [8 << 10, 64 << 10, 512 << 10];
/// The budget of all expressions of a set, in bytes.
const BUDGET: usize = 64 << 20;
/// The maximum length of an expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 4 << 10;
/// The DFA cache limit of each expression.
const DFA_CACHE_MAX: usize = 256 << 10;

impl Expressions {
    pub(super) fn new() -> Self {
        Self { bytes_left: BUDGET }
    }

    /// Compiles one expression. It matches bytes: `.` is any byte but a line feed, `\d` is 0 to 9.
    pub(super) fn compile(&mut self, text: &str) -> Result<Regex, ValueError> {
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(ValueError::new(
                format!(
                    "the expression has {} bytes, more than {EXPRESSION_BYTES_MAX}",
                    text.len()
                ),
                "write a list of values or globs instead",
            ));
        }
        for size in SIZES {
            if size > self.bytes_left {
                let [small, .., large] = SIZES;
                return Err(ValueError::new(
                    format!(
                        "the expressions of all rules exceed their budget: {} small ones, or {} of the largest",
                        BUDGET / small,
                        BUDGET / large
                    ),
                    "use values and globs where they do",
                ));
            }
            let built = RegexBuilder::new(text)
                .unicode(false)
                .size_limit(size)
                .dfa_size_limit(DFA_CACHE_MAX)
                .nest_limit(50)
                .build();
            match built {
                Ok(regex) => {
                    self.bytes_left -= size;
                    return Ok(regex);
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(error) => return Err(syntax_error(text, &error)),
            }
        }
        // The failed attempts took time, too.
        self.bytes_left -= SIZES.iter().copied().max().unwrap_or(0).min(self.bytes_left);
        Err(ValueError::new(
            format!("the expression `{}` is too large when it is compiled", excerpt(text)),
            "lower its repetitions: `a{1000}` counts a thousand times",
        ))
    }
}

/// Extracts the reason, which is the last line of the library's error; the lines before it draw the expression.
fn syntax_error(text: &str, error: &regex::Error) -> ValueError {
    let message = error.to_string();
    let reason = message.lines().last().unwrap_or_default();
    let reason = reason.strip_prefix("error: ").unwrap_or(reason);
    ValueError::new(
        format!("`{}` is not a regular expression: {reason}", excerpt(text)),
        "escape a special character with a backslash: `\\(`",
    )
}
