//! Cases of a test as rows of text.

/// The rows of a table: cells between ` | `, trimmed. Empty lines, and those that start with `#`, are none.
pub fn rows<const CELLS: usize>(table: &str) -> impl Iterator<Item = [&str; CELLS]> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
        cells.try_into().unwrap_or_else(|_| panic!("{CELLS} cells, in {line}"))
    })
}

/// Fails unless a text contains every part.
#[track_caller]
pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
