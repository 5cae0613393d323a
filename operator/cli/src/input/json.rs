//! JSON as RFC 8259 has it, read strictly. Libraries keep the last of two equal names,
//! or round long numbers twice; here the first is refused with its path, and numbers
//! are the closest 64-bit floats.

use std::collections::BTreeMap;

use super::fault::{Fault, quote};

/// Objects and lists within each other.
const DEEPEST: usize = 64;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Flag(bool),
    /// Finite.
    Number(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// Names are distinct.
    Object(BTreeMap<String, Value>),
}

/// Reads exactly one value.
pub fn parse(bytes: &[u8]) -> Result<Value, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (line, column) = place(bytes, error.valid_up_to());
        Fault::new(format!("line {line}, column {column}: not UTF-8: encode the text as UTF-8"))
    })?;
    let mut parser = Parser { text, at: 0 };
    parser.skip_space();
    if parser.at == text.len() {
        return Err(Fault::new("the input is empty: give one JSON object"));
    }
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < text.len() {
        return Err(parser.unexpected("the end, after one JSON value"));
    }
    Ok(value)
}

/// Line and column of a byte, from 1.
fn place(bytes: &[u8], at: usize) -> (usize, usize) {
    let before = &bytes[..at];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |i| i + 1);
    let line = before.split(|&byte| byte == b'\n').count();
    let columns = before[line_start..].iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
    (line, columns + 1)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        if depth > DEEPEST {
            return Err(Fault::new(format!("nested more than {DEEPEST} levels deep: use fewer")));
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => self.string().map(Value::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Result<Value, Fault> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let value = match &rest[..end] {
            "null" => Value::Null,
            "true" => Value::Flag(true),
            "false" => Value::Flag(false),
            "NaN" | "nan" | "Infinity" | "inf" => return Err(self.unexpected("a finite number")),
            _ => return Err(self.unexpected("a JSON value")),
        };
        self.at += end;
        Ok(value)
    }

    fn object(&mut self, depth: usize) -> Result<Value, Fault> {
        self.at += 1;
        let mut fields = BTreeMap::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Value::Object(fields));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a name in double quotes"));
            }
            let name = self.string()?;
            if fields.contains_key(&name) {
                return Err(Fault::new("given twice: give it once").in_field(&name));
            }
            self.skip_space();
            if !self.take(b':') {
                return Err(self.unexpected("a colon").in_field(&name));
            }
            self.skip_space();
            let value = self.value(depth + 1).map_err(|fault| fault.in_field(&name))?;
            fields.insert(name, value);
            self.skip_space();
            if self.take(b'}') {
                return Ok(Value::Object(fields));
            }
            if !self.take(b',') {
                return Err(self.unexpected("a comma or }"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, Fault> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Value::List(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1).map_err(|fault| fault.at(items.len()))?);
            self.skip_space();
            if self.take(b']') {
                return Ok(Value::List(items));
            }
            if !self.take(b',') {
                return Err(self.unexpected("a comma or ]"));
            }
        }
    }

    fn number(&mut self) -> Result<Value, Fault> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Number(number)),
            _ => Err(Fault::new(format!(
                "{} is beyond 64-bit numbers: use a smaller one",
                quote(text)
            ))),
        }
    }

    /// One or more.
    fn digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    fn string(&mut self) -> Result<String, Fault> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let rest = &self.text[self.at..];
            let end = rest.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(rest.len());
            text.push_str(&rest[..end]);
            self.at += end;
            if self.take(b'"') {
                return Ok(text);
            }
            if !self.take(b'\\') {
                return Err(self.unexpected("the rest of a text, and a double quote"));
            }
            text.push(self.escaped()?);
        }
    }

    fn escaped(&mut self) -> Result<char, Fault> {
        let escaped = self.peek();
        let plain = match escaped {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.unexpected("an escape of JSON, such as \\n")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode(&mut self) -> Result<char, Fault> {
        let first = self.hexadecimal()?;
        let mut code = u32::from(first);
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            let second = u32::from(self.hexadecimal()?);
            if (0xdc00..0xe000).contains(&second) {
                code = 0x1_0000 + ((code - 0xd800) << 10) + (second - 0xdc00);
            }
        }
        // Half of a pair is no character.
        char::from_u32(code).ok_or_else(|| self.unexpected("both halves of a surrogate pair"))
    }

    fn hexadecimal(&mut self) -> Result<u16, Fault> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let code = code.ok_or_else(|| self.unexpected("four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }

    fn unexpected(&self, wanted: &str) -> Fault {
        let (line, column) = place(self.text.as_bytes(), self.at);
        let got = match self.text[self.at..].chars().next() {
            None => "the end of the input".to_owned(),
            Some(c) => quote(&c.to_string()),
        };
        Fault::new(format!("line {line}, column {column}: expected {wanted}, got {got}"))
    }
}
