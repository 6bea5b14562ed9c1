//! Input cut into batches, in constant memory: a batch ends at so many events,
//! at so many bytes, or, for somebody who types or pipes, when nothing more is
//! waiting. Knows nothing of publishers.

use std::io::{self, BufRead as _, BufReader, Read};

use counterfoil::proto::{
    limits::{MAX_BATCH_BYTES, MAX_MESSAGE_BYTES},
    pb::NewEvent,
};
use prost::Message as _;

use super::line::{self, KeyFrom};

/// What the publisher adds to an event when it stores it, at most, in bytes:
/// sequence, version, time, fingerprint, a default content type.
const STORED_OVERHEAD_BYTES: usize = 128;

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

/// Some events to be sent together.
#[derive(Debug, Default)]
pub struct Batch {
    /// In the order of the input.
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

/// How input is cut.
#[derive(Debug, Clone)]
pub struct Cut {
    /// Most events of a batch.
    pub events: usize,
    /// End a batch when the next line would have to be waited for.
    pub when_waiting: bool,
    /// Where keys of lines without a key are found.
    pub key_field: Option<String>,
}

/// The batches of an input. Ends after the first error; what stood before it
/// comes first.
pub struct Batches<R> {
    input: BufReader<R>,
    cut: Cut,
    number: u64,
    bytes_read: u64,
    text: Vec<u8>,
    /// A line that no longer fitted the batch before.
    left_over: Option<Line>,
    ended: Option<Option<InputError>>,
}

impl<R: Read> Batches<R> {
    /// Cuts `input`.
    pub fn new(input: R, cut: Cut) -> Self {
        Batches {
            input: BufReader::with_capacity(64 * 1024, input),
            cut,
            number: 0,
            bytes_read: 0,
            text: Vec::new(),
            left_over: None,
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
            return line::parse(text, self.cut.key_field.as_deref())
                .map(|(event, key_from)| Some(Line { number, event, key_from }))
                .map_err(|wrong| InputError::Malformed(number, wrong));
        }
    }
}

impl<R: Read> Iterator for Batches<R> {
    type Item = Result<Batch, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while batch.lines.len() < self.cut.events && self.ended.is_none() {
            let line = match self.left_over.take() {
                Some(line) => line,
                None => {
                    let waiting = self.cut.when_waiting && self.input.buffer().is_empty();
                    if waiting && !batch.lines.is_empty() {
                        break;
                    }
                    match self.line() {
                        Ok(Some(line)) => line,
                        Ok(None) => {
                            self.ended = Some(None);
                            break;
                        }
                        Err(error) => {
                            self.ended = Some(Some(error));
                            break;
                        }
                    }
                }
            };
            bytes += line.event.encoded_len() + STORED_OVERHEAD_BYTES;
            if bytes > MAX_BATCH_BYTES && !batch.lines.is_empty() {
                self.left_over = Some(line);
                break;
            }
            batch.lines.push(line);
        }
        if !batch.lines.is_empty() {
            batch.bytes_read = self.bytes_read;
            return Some(Ok(batch));
        }
        // Nothing is left over here: a left-over line always opens a batch.
        self.ended.as_mut()?.take().map(Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(events: usize) -> Cut {
        Cut { events, when_waiting: false, key_field: None }
    }

    fn line(number: usize, data: usize) -> String {
        format!(r#"{{"key":"k{number}","type":"t","jsonText":"{}"}}"#, "1".repeat(data))
    }

    fn sizes(input: &str, cut: Cut) -> Vec<usize> {
        Batches::new(input.as_bytes(), cut).map(|batch| batch.expect("valid").lines.len()).collect()
    }

    #[test]
    fn a_batch_ends_at_its_number_of_events() {
        let input: String = (0..7).map(|number| line(number, 1) + "\n\n").collect();
        assert_eq!(sizes(&input, cut(3)), [3, 3, 1]);
        assert_eq!(sizes("", cut(3)), [0usize; 0]);
    }

    #[test]
    fn a_batch_ends_before_it_is_too_large() {
        let input: String = (0..5).map(|number| line(number, 400 * 1024) + "\n").collect();
        assert_eq!(sizes(&input, cut(1000)), [2, 2, 1]);
        assert_eq!(sizes(&line(0, 2 * 1024 * 1024), cut(1000)), [1]);
    }

    #[test]
    fn nothing_after_a_malformed_line_is_read_and_what_stood_before_it_comes() {
        let input = format!("{}\n\nnonsense\n{}\n", line(0, 1), line(1, 1));
        let mut batches = Batches::new(input.as_bytes(), cut(10));
        let first = batches.next().expect("one batch").expect("valid");
        assert_eq!(first.lines.len(), 1);
        let error = batches.next().expect("an end").expect_err("malformed").to_string();
        assert!(error.starts_with("line 3: expected one NewEvent"), "{error}");
        assert!(batches.next().is_none());
    }

    #[test]
    fn a_line_without_end_is_not_read_into_memory() {
        let input = io::repeat(b'x');
        let error = Batches::new(input, cut(10)).next().expect("an end").expect_err("too long");
        assert!(error.to_string().contains("at most 4194304 bytes"), "{error}");
    }

    #[test]
    fn who_pipes_does_not_wait_for_a_full_batch() {
        // Gives one line at each read, as a pipe does.
        struct Pipe(Vec<String>);
        impl Read for Pipe {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                let Some(line) = self.0.pop() else { return Ok(0) };
                to[..line.len()].copy_from_slice(line.as_bytes());
                Ok(line.len())
            }
        }
        let pipe = || Pipe((0..3).map(|number| line(number, 1) + "\n").collect());
        let greedy = Cut { when_waiting: true, ..cut(10) };
        assert_eq!(Batches::new(pipe(), greedy).count(), 3);
        assert_eq!(Batches::new(pipe(), cut(10)).count(), 1);
    }
}
