//! Fields of a payload that a handler's requirements have named (`as`), as its statements are
//! given them: what `:data ->> 'field'` would give, without another look into the JSON.

use bytes::Bytes;

/// As many as most handlers name stand here themselves, so that judging an event allocates
/// nothing.
const INLINE: usize = 4;

/// One field.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number that 64 bits hold, or 0 and 1 for false and true.
    Integer(i64),
    /// Any other number.
    Real(f64),
    /// UTF-8; a part of the payload where it stands there as it is.
    Text(Bytes),
}

/// The named fields of one event, in the order of the requirements.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Values {
    few: [Option<Value>; INLINE],
    /// Those that have no room there.
    more: Vec<Option<Value>>,
}

impl Values {
    /// The one so many places from the first.
    pub fn get(&self, place: usize) -> Option<&Value> {
        let value = self.few.get(place).or_else(|| self.more.get(place - INLINE));
        value.and_then(Option::as_ref)
    }
}

impl FromIterator<Option<Value>> for Values {
    fn from_iter<I: IntoIterator<Item = Option<Value>>>(values: I) -> Self {
        let mut values = values.into_iter().fuse();
        // Struct fields are evaluated in this order.
        Values { few: std::array::from_fn(|_| values.next().flatten()), more: values.collect() }
    }
}
