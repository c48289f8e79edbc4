use std::collections::HashMap;
use std::fmt;

/// A token of the input; it doesn't own its text.
#[derive(Debug, Clone, PartialEq)]
pub enum Token<'a> {
    Name(&'a str),
    Number(f64),
    Open,
    Close,
}

#[derive(Debug)]
pub struct Error {
    at: usize,
    found: char,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unexpected {:?} at {}", self.found, self.at)
    }
}

pub fn tokens<'a>(text: &'a str) -> Result<Vec<Token<'a>>, Error> {
    let mut found = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some(&(at, c)) = chars.peek() {
        match c {
            '(' => {
                found.push(Token::Open);
                chars.next();
            }
            ')' => {
                found.push(Token::Close);
                chars.next();
            }
            ' ' | '\n' | '\'' => {
                chars.next();
            }
            _ if c.is_alphabetic() => {
                let end = text[at..].find(|c: char| !c.is_alphanumeric()).map_or(text.len(), |n| at + n);
                found.push(Token::Name(&text[at..end]));
                while chars.peek().is_some_and(|&(i, _)| i < end) {
                    chars.next();
                }
            }
            found => return Err(Error { at, found }),
        }
    }
    Ok(found)
}

pub fn defaults() -> HashMap<&'static str, Vec<Option<f64>>> {
    HashMap::from([
        ("a", vec![Some(1.0), None]),
        ("b", vec![Some(2.0), None]),
    ])
}
