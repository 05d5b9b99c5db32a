//! Plans as text: columns padded to the longest cell.

use super::rows::RowConcern;
use super::{ChangePlan, PlanLine, PlanOp};
use std::fmt;

impl fmt::Display for ChangePlan {
    /// The lines, the override rows that they concern, and the summary. An equal set is `no changes`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl ChangePlan {
    /// The same text with the override rows listed.
    pub fn text_with_rows(&self) -> String {
        struct Listed<'p>(&'p ChangePlan);
        impl fmt::Display for Listed<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.write(f, true)
            }
        }
        Listed(self).to_string()
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, lists_rows: bool) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no changes");
        }
        let width = |cell: fn(&PlanLine) -> usize| self.lines.iter().map(cell).max().unwrap_or(0);
        let names = width(|line| chars(&name(line)));
        let whats = width(|line| chars(&printable(&line.what)));
        for line in &self.lines {
            let sign = match line.op {
                PlanOp::Changed => '~',
                PlanOp::Added => '+',
                PlanOp::Removed => '-',
            };
            let (name, what) = (name(line), printable(&line.what));
            let text = format!("{sign} {name:names$}  {what:whats$}  {}", printable(&line.effect));
            writeln!(f, "{}", text.trim_end())?;
        }
        for note in &self.rows {
            let (rows, verb) = match note.count {
                1 => ("row", "is"),
                _ => ("rows", "are"),
            };
            let text = match note.concern {
                RowConcern::Above => format!("{verb} above the new limit"),
                RowConcern::Invalid => format!("{verb} invalid under the new rule"),
                RowConcern::Orphaned => format!("{verb} kept without a rule"),
            };
            let hint = if lists_rows { "" } else { " (list: --rows)" };
            writeln!(
                f,
                "! {} override {rows} of {}/{} {text}{hint}",
                note.count,
                printable(&note.domain),
                printable(&note.rule)
            )?;
            for row in note.sample.iter().filter(|_| lists_rows) {
                writeln!(f, "    {}  {}", printable(&row.subject), printable(&row.terms))?;
            }
            let more = note.count.saturating_sub(note.sample.len());
            if lists_rows && more > 0 {
                writeln!(f, "    and {more} more")?;
            }
        }
        let Self {
            changed,
            added,
            removed,
            unchanged,
            ..
        } = self;
        write!(
            f,
            "plan: {changed} changed, {added} added, {removed} removed, {unchanged} unchanged"
        )?;
        let Self {
            format,
            supported,
            instances,
            ..
        } = self;
        let noun = if *instances == 1 { "instance" } else { "instances" };
        write!(f, "; format {format}, supported by {supported} of {instances} {noun}")
    }
}

fn name(line: &PlanLine) -> String {
    printable(&format!("{}/{}", line.domain, line.rule))
}

/// A text without control characters: those of a plan from a server could rewrite a terminal.
fn printable(text: &str) -> String {
    let mut printed = String::new();
    for c in text.chars() {
        match c.is_control() {
            true => printed.extend(c.escape_default()),
            false => printed.push(c),
        }
    }
    printed
}

fn chars(text: &str) -> usize {
    text.chars().count()
}
