//! Columns of text, padded to the longest cell.

use serde_json::Value;

/// Renders rows below a header. Without rows it is the text of `empty`.
pub(crate) fn render<const N: usize>(header: [&str; N], rows: &[[String; N]], empty: &str) -> String {
    if rows.is_empty() {
        return empty.to_owned();
    }
    let mut widths = header.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let header = header.map(str::to_owned);
    let lines: Vec<String> = [&header].into_iter().chain(rows).map(line).collect();
    lines.join("\n")
}

/// A member as text without control characters, which could rewrite a terminal; empty if it is missing.
pub(crate) fn cell(item: &Value, name: &str) -> String {
    match item.get(name) {
        Some(Value::String(text)) => printable(text),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

/// A subject as text: `merchant=m_42,region=eu`.
pub(crate) fn subject_text(subject: &Value) -> String {
    let pair = |(name, value): (&String, &Value)| format!("{name}={}", value.as_str().unwrap_or_default());
    let pairs = subject.as_object().map(|map| map.iter().map(pair).collect::<Vec<_>>());
    printable(&pairs.unwrap_or_default().join(","))
}

/// A number of a member; 0 if it is missing.
pub(crate) fn number(item: &Value, name: &str) -> u64 {
    item.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// A text without control characters, which could rewrite a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut printed = String::new();
    for c in text.chars() {
        if c.is_control() {
            printed.extend(c.escape_default());
        } else {
            printed.push(c);
        }
    }
    printed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_padded_and_control_characters_escaped() {
        let item = json!({"name": "a\u{1b}[31m", "n": 7});
        let rows = [
            [cell(&item, "name"), cell(&item, "n")],
            ["b".to_owned(), cell(&item, "none")],
        ];
        assert_eq!(render(["name", "n"], &rows, ""), "name         n\na\\u{1b}[31m  7\nb");
        assert_eq!(render(["name"], &[], "nothing"), "nothing");
        assert_eq!(subject_text(&json!({"a": "x", "b": "y"})), "a=x,b=y");
    }
}
