//! Lines of input as events, in constant memory, in the chunks that they come in:
//! whoever types or pipes does not wait. Knows nothing of publishers.

use std::io::{self, BufRead as _, BufReader, Read};

use counterfoil::proto::{limits::MAX_MESSAGE_BYTES, pb::NewEvent};

use super::line::{self, KeyFrom};

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 * 1024;

/// One event and the line it stood on.
#[derive(Debug, Clone)]
pub struct Line {
    /// From 1.
    pub number: u64,
    /// The event.
    pub event: NewEvent,
    /// Where its key came from.
    pub key_from: KeyFrom,
}

/// Lines that came together.
#[derive(Debug, Default)]
pub struct Chunk {
    /// In the order of the input; at least one.
    pub lines: Vec<Line>,
    /// Bytes of input read so far, these lines included.
    pub bytes_read: u64,
}

/// Why reading stopped before the end of the input.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A line is no event.
    #[error("line {0}: {1}")]
    Malformed(u64, String),
    /// The input cannot be read.
    #[error("line {0}: cannot be read: {1}")]
    Unreadable(u64, io::Error),
}

/// The lines of an input. Ends after the first error; what stood before it
/// comes first.
pub struct Chunks<R> {
    input: BufReader<R>,
    /// Where keys of lines without a key are found.
    key_field: Option<String>,
    number: u64,
    bytes_read: u64,
    text: Vec<u8>,
    ended: Option<Option<InputError>>,
}

impl<R: Read> Chunks<R> {
    /// Reads `input`.
    pub fn new(input: R, key_field: Option<String>) -> Self {
        Chunks {
            input: BufReader::with_capacity(READ_BYTES, input),
            key_field,
            number: 0,
            bytes_read: 0,
            text: Vec::new(),
            ended: None,
        }
    }

    /// The next line that is not blank; nothing at the end of the input.
    fn line(&mut self) -> Result<Option<Line>, InputError> {
        loop {
            self.text.clear();
            self.number += 1;
            let number = self.number;
            let length = (&mut self.input)
                .take(MAX_MESSAGE_BYTES as u64 + 1)
                .read_until(b'\n', &mut self.text)
                .map_err(|error| InputError::Unreadable(number, error))?;
            self.bytes_read += length as u64;
            if length == 0 {
                return Ok(None);
            }
            if length > MAX_MESSAGE_BYTES {
                let wrong = format!("expected at most {MAX_MESSAGE_BYTES} bytes");
                return Err(InputError::Malformed(number, wrong));
            }
            let text = self.text.trim_ascii();
            if text.is_empty() {
                continue;
            }
            return line::parse(text, self.key_field.as_deref())
                .map(|(event, key_from)| Some(Line { number, event, key_from }))
                .map_err(|wrong| InputError::Malformed(number, wrong));
        }
    }
}

impl<R: Read> Iterator for Chunks<R> {
    type Item = Result<Chunk, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut chunk = Chunk::default();
        while self.ended.is_none() {
            match self.line() {
                Ok(Some(line)) => chunk.lines.push(line),
                Ok(None) => self.ended = Some(None),
                Err(error) => self.ended = Some(Some(error)),
            }
            // The next line would have to be waited for.
            if !chunk.lines.is_empty() && !self.input.buffer().contains(&b'\n') {
                break;
            }
        }
        if !chunk.lines.is_empty() {
            chunk.bytes_read = self.bytes_read;
            return Some(Ok(chunk));
        }
        self.ended.as_mut()?.take().map(Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: usize, data: usize) -> String {
        format!(r#"{{"key":"k{number}","type":"t","jsonText":"{}"}}"#, "1".repeat(data))
    }

    fn numbers(input: impl Read) -> Vec<Vec<u64>> {
        let numbers = |chunk: Chunk| chunk.lines.iter().map(|line| line.number).collect();
        Chunks::new(input, None).map(|chunk| numbers(chunk.expect("valid"))).collect()
    }

    #[test]
    fn lines_come_in_order_and_blank_ones_are_left_out() {
        let input: String = (0..4).map(|number| line(number, 1) + "\n\n").collect();
        assert_eq!(numbers(input.as_bytes()), [[1, 3, 5, 7]]);
        assert_eq!(numbers(line(0, 1).as_bytes()), [[1]], "the last line may lack its end");
        assert!(numbers(&b""[..]).is_empty());
    }

    #[test]
    fn a_chunk_is_what_one_read_has_brought() {
        let input: String = (0..1000).map(|number| line(number, 400) + "\n").collect();
        let chunks = numbers(input.as_bytes());
        assert!(chunks.iter().all(|chunk| chunk.len() <= READ_BYTES / 400), "{chunks:?}");
        assert_eq!(chunks.concat(), (1..=1000).collect::<Vec<_>>());
        let large = line(0, 2 * READ_BYTES) + "\n" + &line(1, 1);
        assert_eq!(numbers(large.as_bytes()).concat(), [1, 2]);
    }

    #[test]
    fn nothing_after_a_malformed_line_is_read_and_what_stood_before_it_comes() {
        let input = format!("{}\n\nnonsense\n{}\n", line(0, 1), line(1, 1));
        let mut chunks = Chunks::new(input.as_bytes(), None);
        let first = chunks.next().expect("one chunk").expect("valid");
        assert_eq!(first.lines.len(), 1);
        let error = chunks.next().expect("an end").expect_err("malformed").to_string();
        assert!(error.starts_with("line 3: expected one NewEvent"), "{error}");
        assert!(chunks.next().is_none());
    }

    #[test]
    fn a_line_without_end_is_not_read_into_memory() {
        let input = io::repeat(b'x');
        let error = Chunks::new(input, None).next().expect("an end").expect_err("too long");
        assert!(error.to_string().contains("at most 4194304 bytes"), "{error}");
    }

    #[test]
    fn who_pipes_does_not_wait_for_the_next_line() {
        // Gives some bytes at each read, as a pipe does.
        struct Pipe(Vec<String>);
        impl Read for Pipe {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                let Some(bytes) = self.0.pop() else { return Ok(0) };
                to[..bytes.len()].copy_from_slice(bytes.as_bytes());
                Ok(bytes.len())
            }
        }
        let whole = Pipe((0..3).map(|number| line(number, 1) + "\n").collect());
        assert_eq!(numbers(whole), [[1], [2], [3]]);
        let (start, end) = (line(1, 1), "\n".to_owned());
        let half = Pipe(vec![end, line(0, 1) + "\n" + &start]);
        assert_eq!(numbers(half), [[1], [2]]);
    }
}
