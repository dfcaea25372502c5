use rustc_hash::FxHashMap;

/// A sparse map from numbers to values: values in a dense list, with an index from number to position.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    places: Places,
    values: Vec<(u64, T)>,
}

#[derive(Debug)]
enum Places {
    /// Position plus one; 0 for none. Pages of the table that are never touched take no memory.
    Table(Vec<u32>),
    Map(FxHashMap<u64, u32>),
}

impl<T> Numbered<T> {
    /// An empty map for numbers below `end`.
    pub(super) fn new(end: u64) -> Self {
        let places =
            if end <= TABLE_MAX { Places::Table(vec![0; end as usize]) } else { Places::Map(FxHashMap::default()) };
        Self { places, values: Vec::new() }
    }

    /// Returns the number's value.
    ///
    /// # Panics
    /// If the number is not below `end`.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        Some(&mut self.values[place].1)
    }

    /// Returns the number's value; creates it if there is none.
    ///
    /// # Panics
    /// If the number is not below `end`.
    #[inline]
    pub(super) fn get_or_insert_with(&mut self, number: u64, make: impl FnOnce() -> T) -> &mut T {
        let place = self.place(number).unwrap_or_else(|| self.push(number, make()));
        &mut self.values[place].1
    }

    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        let place = match &self.places {
            Places::Table(table) => table[number as usize],
            Places::Map(map) => map.get(&number).copied().unwrap_or(0),
        };
        (place as usize).checked_sub(1)
    }

    /// Adds a value for a number that has none; returns its position.
    #[cold]
    fn push(&mut self, number: u64, value: T) -> usize {
        let place = self.values.len();
        self.values.push((number, value));
        let entry = u32::try_from(place + 1).expect("four thousand million values do not fit into memory");
        match &mut self.places {
            Places::Table(table) => table[number as usize] = entry,
            Places::Map(map) => {
                map.insert(number, entry);
            }
        }
        place
    }

    /// All values, in ascending order of their numbers.
    pub(super) fn into_sorted(self) -> Vec<(u64, T)> {
        let mut values = self.values;
        values.sort_unstable_by_key(|(number, _)| *number);
        values
    }
}

/// Largest range of numbers for a table, which takes 16 MiB; larger ranges use a hash map.
const TABLE_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_number_in_a_table_and_in_a_map() {
        for end in [100, TABLE_MAX + 1] {
            let mut numbered = Numbered::new(end);
            assert_eq!(numbered.get_mut(end - 1), None);
            assert_eq!(numbered.get_or_insert_with(end - 1, || "last"), &"last");
            numbered.get_or_insert_with(0, || "first");
            assert_eq!(numbered.get_or_insert_with(0, || "second"), &"first");
            *numbered.get_mut(0).unwrap() = "new";
            assert_eq!(numbered.get_mut(end - 1), Some(&mut "last"));
            assert_eq!(numbered.get_mut(7), None);
            assert_eq!(numbered.into_sorted(), [(0, "new"), (end - 1, "last")]);
        }
    }
}
