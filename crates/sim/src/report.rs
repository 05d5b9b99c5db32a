//! Results as a table for people and as JSON for programs.

mod json;
mod overload;
mod storm;

pub use json::JsonWriter;
pub use overload::{adaptive_json, adaptive_table, overload_json, overload_table};
pub use storm::{storm_json, storm_table};

/// Columns of text: the first aligned left, the others right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::len);
        let longest = cells.max().unwrap_or(0);
        longest.max(header.get(column).map_or(0, |name| name.len()))
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            match column {
                0 => line.push_str(&format!("{gap}{cell:<width$}")),
                _ => line.push_str(&format!("{gap}{cell:>width$}")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Thousandths as a percentage with one decimal.
pub(crate) fn percent(permille: u64) -> String {
    format!("{}.{}%", permille / 10, permille % 10)
}

/// Milliseconds as seconds with one decimal, rounded up.
pub(crate) fn seconds(ms: u64) -> String {
    let tenths = ms.div_ceil(100);
    format!("{}.{}s", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_spaces() {
        let rows = [
            vec!["a".to_owned(), "100".to_owned()],
            vec!["longer".to_owned(), "1".to_owned()],
        ];
        assert_eq!(table(&["name", "n"], &rows), "name      n\na       100\nlonger    1\n");
    }

    #[test]
    fn shares_and_times_have_one_decimal() {
        assert_eq!(
            (percent(987), percent(1_000), percent(5)),
            ("98.7%".into(), "100.0%".into(), "0.5%".into())
        );
        assert_eq!(
            (seconds(0), seconds(901), seconds(12_000)),
            ("0.0s".into(), "1.0s".into(), "12.0s".into())
        );
    }
}
