//! A lexer for Rust that knows just enough for the rules: names, marks, string literals and doc comments.

/// A token and the line it starts in.
pub(crate) struct Token {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or keyword.
    Name(String),
    /// One character of punctuation.
    Mark(char),
    /// The inside of a string literal.
    Literal(String),
    /// The text of all lines of one doc comment.
    Doc(String),
}

impl Token {
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.kind {
            Kind::Name(name) => Some(name),
            Kind::Mark(_) | Kind::Literal(_) | Kind::Doc(_) => None,
        }
    }

    pub(crate) fn is(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }
}

/// The tokens of a Rust file. Plain comments, numbers, lifetimes and character literals are left out.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut lexer = Lexer {
        rest: text,
        line: 1,
        tokens: Vec::new(),
        doc_ends_in: 0,
    };
    while !lexer.rest.is_empty() {
        lexer.step();
    }
    lexer.tokens
}

/// The tokens without the items that only tests see: those under `#[cfg(test)]` and `#[test]`.
pub(crate) fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let mut kept: Vec<Token> = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if !(token.is('#') && tokens.peek().is_some_and(|next| next.is('['))) {
            kept.push(token);
            continue;
        }
        let mut attribute = vec![token];
        let mut depth = 0;
        for token in tokens.by_ref() {
            depth += i32::from(token.is('[')) - i32::from(token.is(']'));
            attribute.push(token);
            if depth == 0 {
                break;
            }
        }
        let names: Vec<&str> = attribute.iter().filter_map(Token::name).collect();
        if !matches!(names[..], ["cfg", "test", ..] | ["test"] | [_, "test"]) {
            kept.append(&mut attribute);
            continue;
        }
        let mut depth = 0;
        for token in tokens.by_ref() {
            match token.kind {
                Kind::Mark('{' | '(' | '[') => depth += 1,
                Kind::Mark(')' | ']') => depth -= 1,
                Kind::Mark('}') if depth == 1 => break,
                Kind::Mark('}') => depth -= 1,
                Kind::Mark(';' | ',') if depth == 0 => break,
                _ => {}
            }
        }
    }
    kept
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
    /// The line of the last doc comment; one in the next line continues it.
    doc_ends_in: usize,
}

impl Lexer<'_> {
    fn step(&mut self) {
        let rest = self.rest;
        let first = rest.chars().next().unwrap_or_default();
        if rest.starts_with("//") {
            let comment = rest.lines().next().unwrap_or_default();
            self.comment(comment);
            self.advance(comment.len());
        } else if rest.starts_with("/*") {
            self.advance(rest.find("*/").map_or(rest.len(), |end| end + 2));
        } else if let Some((open, close)) = raw_string(rest) {
            let inside = rest.get(open..).unwrap_or_default();
            let length = inside.find(&close).unwrap_or(inside.len());
            self.push(Kind::Literal(inside[..length].into()));
            self.advance((open + length + close.len()).min(rest.len()));
        } else if let Some(open) = ["\"", "b\"", "c\""].into_iter().find(|open| rest.starts_with(open)) {
            let inside = &rest[open.len()..];
            let length = string_length(inside);
            self.push(Kind::Literal(inside[..length].into()));
            self.advance((open.len() + length + 1).min(rest.len()));
        } else if first == '\'' {
            self.advance(quote_length(rest));
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
            self.push(Kind::Name(rest[..end].into()));
            self.advance(end);
        } else if first.is_ascii_digit() {
            self.advance(rest.find(|c: char| !is_name(c)).unwrap_or(rest.len()));
        } else {
            if !first.is_whitespace() {
                self.push(Kind::Mark(first));
            }
            self.advance(first.len_utf8());
        }
    }

    /// A doc comment becomes a token, or a further line of the last one.
    fn comment(&mut self, comment: &str) {
        let is_doc = comment.starts_with("//!") || (comment.starts_with("///") && !comment.starts_with("////"));
        if !is_doc {
            return;
        }
        let text = comment[3..].trim_start();
        match self.tokens.last_mut() {
            Some(Token {
                kind: Kind::Doc(doc), ..
            }) if self.doc_ends_in + 1 == self.line => {
                doc.push('\n');
                doc.push_str(text);
            }
            _ => self.push(Kind::Doc(text.into())),
        }
        self.doc_ends_in = self.line;
    }

    fn push(&mut self, kind: Kind) {
        self.tokens.push(Token { line: self.line, kind });
    }

    fn advance(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Of `r#"`: its length, and what closes it.
fn raw_string(rest: &str) -> Option<(usize, String)> {
    let prefix = ["br", "cr", "r"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let after = &rest[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..]
        .starts_with('"')
        .then(|| (prefix.len() + hashes + 1, format!("\"{}", "#".repeat(hashes))))
}

/// The bytes before the quote that ends a string literal.
fn string_length(inside: &str) -> usize {
    let mut escaped = false;
    inside
        .find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })
        .unwrap_or(inside.len())
}

/// The bytes of a character literal, or of a lifetime with its quote.
fn quote_length(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((escaped, c))) => {
            let after = escaped + c.len_utf8();
            rest[after..].find('\'').map_or(rest.len(), |end| after + end + 1)
        }
        (Some(_), Some((end, '\''))) => end + 1,
        _ => 1 + rest[1..].find(|c| !is_name(c)).unwrap_or(rest.len() - 1),
    }
}

#[test]
fn tokens_keep_names_strings_and_docs_apart() {
    let source =
        "//! One\n//! two.\n\n/// Doc.\nfn a<'b>(c: &'b str) -> char { // told\n  let s = \"x \\\" y\"; '\\'' }\n";
    let tokens = tokens(source);
    let docs: Vec<&Kind> = tokens
        .iter()
        .map(|token| &token.kind)
        .filter(|kind| matches!(kind, Kind::Doc(_)))
        .collect();
    assert_eq!(docs, [&Kind::Doc("One\ntwo.".into()), &Kind::Doc("Doc.".into())]);
    let names: Vec<&str> = tokens.iter().filter_map(Token::name).collect();
    assert_eq!(names, ["fn", "a", "c", "str", "char", "let", "s"]);
    assert!(
        tokens
            .iter()
            .any(|token| token.kind == Kind::Literal("x \\\" y".into()) && token.line == 6)
    );
    assert!(tokens.last().is_some_and(|token| token.is('}')));
}

#[test]
fn items_of_tests_are_left_out() {
    let source =
        "fn a() {}\n#[cfg(test)]\n#[expect(lint)]\nmod tests { fn b() {} }\n#[test]\nfn c() { d(); }\nfn e() {}\n";
    let kept = without_tests(tokens(source));
    let names: Vec<&str> = kept.iter().filter_map(Token::name).collect();
    assert_eq!(names, ["fn", "a", "fn", "e"]);
}
