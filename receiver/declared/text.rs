//! Text of a projection file that knows its lines, so that what is wrong somewhere within it
//! has the line that an editor shows.

use std::ops::Range;

/// The line of a place in a file, from 1.
pub fn line_of(source: &str, offset: usize) -> usize {
    let before = source.as_bytes().get(..offset).unwrap_or(source.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// A value that is text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    /// What it says.
    pub text: String,
    /// The line of its first character.
    line: usize,
    /// Where it breaks lines of the file; nowhere where escapes stand for what it says.
    breaks: Vec<usize>,
}

impl Text {
    /// The text of a value that stands in a file from here to there, quotes included.
    pub fn read(source: &str, span: Range<usize>, text: &str) -> Self {
        let line = line_of(source, span.start);
        let raw = source.get(span).unwrap_or_default();
        let long = ["'''", "\"\"\""].iter().find_map(|quotes| raw.strip_prefix(quotes));
        let Some(inner) = long else {
            return Text { text: text.to_owned(), line, breaks: Vec::new() };
        };
        // A line break right behind the quotes is none of the text's.
        let opens = inner.starts_with('\n') || inner.starts_with("\r\n");
        let as_written = raw.starts_with("'''") || !raw.contains('\\');
        let breaks = text.match_indices('\n').filter(|_| as_written).map(|(at, _)| at);
        Text { text: text.to_owned(), line: line + usize::from(opens), breaks: breaks.collect() }
    }

    /// The line of a place in it.
    pub fn line_at(&self, offset: usize) -> usize {
        self.line + self.breaks.partition_point(|at| *at < offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_file() {
        let cases = [
            ("a = 1\nb = 'x'", "'x'", "x", 0, 2),
            ("b = '''\nx\ny'''", "'''\nx\ny'''", "x\ny", 0, 2),
            ("b = '''\nx\ny'''", "'''\nx\ny'''", "x\ny", 2, 3),
            ("b = '''\r\nx\r\ny'''", "'''\r\nx\r\ny'''", "x\r\ny", 3, 3),
            ("b = '''x\ny'''", "'''x\ny'''", "x\ny", 2, 2),
            ("b = \"\"\"\nx\ny\"\"\"", "\"\"\"\nx\ny\"\"\"", "x\ny", 2, 3),
            ("b = \"x\\ny\"", "\"x\\ny\"", "x\ny", 0, 1),
            ("b = \"\"\"\\\n x\\ny\"\"\"", "\"\"\"\\\n x\\ny\"\"\"", "x\ny", 2, 1),
        ];
        for (source, raw, text, offset, line) in cases {
            let start = source.find(raw).expect("within it");
            let read = Text::read(source, start..start + raw.len(), text);
            assert_eq!(read.line_at(offset), line, "{source:?} at {offset}");
        }
    }
}
