//! Rows as Apache Parquet, column by column and without Arrow.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{
    ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::row::{Row, RowWriter};

/// Amounts have nine decimals whatever they count: a column has one scale.
const SCHEMA: &str = "
message usage {
    REQUIRED BYTE_ARRAY id (STRING);
    REQUIRED BYTE_ARRAY entity (STRING);
    REQUIRED BYTE_ARRAY resource (STRING);
    REQUIRED BYTE_ARRAY limit (STRING);
    REQUIRED BYTE_ARRAY window (STRING);
    REQUIRED INT64 start (TIMESTAMP(MILLIS,true));
    REQUIRED INT64 end (TIMESTAMP(MILLIS,true));
    REQUIRED FIXED_LEN_BYTE_ARRAY (16) amount (DECIMAL(38,9));
    REQUIRED BYTE_ARRAY unit (STRING);
    REQUIRED INT64 events;
    OPTIONAL FIXED_LEN_BYTE_ARRAY (16) cost (DECIMAL(38,9));
    OPTIONAL BYTE_ARRAY currency (STRING);
}";
/// The first number with more digits than the schema has.
const BEYOND: u128 = 10_u128.pow(38);
/// Rows that are in memory at a time, about 1 KB each.
const GROUP_ROWS: usize = 1 << 15;

type Out = Box<dyn Write + Send>;

pub(super) struct ParquetWriter {
    file: SerializedFileWriter<Out>,
    group: Group,
}

impl ParquetWriter {
    pub(super) fn new(out: Out) -> io::Result<Self> {
        let schema = parse_message_type(SCHEMA).map_err(failed)?;
        // No id repeats.
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_column_dictionary_enabled(ColumnPath::from("id"), false)
            .build();
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties));
        Ok(Self { file: file.map_err(failed)?, group: Group::default() })
    }

    fn end_group(&mut self) -> io::Result<()> {
        let group = std::mem::take(&mut self.group);
        let mut out = self.file.next_row_group().map_err(failed)?;
        group.write(&mut out).map_err(failed)?;
        out.close().map(drop).map_err(failed)
    }
}

impl RowWriter for ParquetWriter {
    fn write(&mut self, row: &Row<'_>) -> io::Result<()> {
        self.group.push(row)?;
        if self.group.id.len() == GROUP_ROWS { self.end_group() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        if !self.group.id.is_empty() {
            self.end_group()?;
        }
        self.file.into_inner().map_err(failed)?.flush()
    }
}

/// An error of the file stays what it is: a reader that has seen enough closes a pipe.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}

/// The rows of a row group by column, in the order of the schema.
#[derive(Default)]
struct Group {
    id: Vec<ByteArray>,
    entity: Vec<ByteArray>,
    resource: Vec<ByteArray>,
    limit: Vec<ByteArray>,
    window: Vec<ByteArray>,
    start: Vec<i64>,
    end: Vec<i64>,
    amount: Vec<FixedLenByteArray>,
    unit: Vec<ByteArray>,
    events: Vec<i64>,
    /// 1 for a row with a cost, 0 for others.
    has_cost: Vec<i16>,
    cost: Vec<FixedLenByteArray>,
    currency: Vec<ByteArray>,
}

impl Group {
    fn push(&mut self, row: &Row<'_>) -> io::Result<()> {
        let numbers = &row.numbers;
        self.amount.push(decimal(numbers.amount_nanos)?);
        self.has_cost.push(i16::from(row.currency.is_some()));
        if let Some(currency) = row.currency {
            self.cost.push(decimal(numbers.cost_nanos)?);
            self.currency.push(currency.into());
        }
        self.id.push(row.id.as_str().into());
        self.entity.push(row.entity.into());
        self.resource.push(row.resource.into());
        self.limit.push(row.limit.into());
        self.window.push(row.window.as_str().into());
        self.start.push(numbers.window.start_s() * 1_000);
        self.end.push(numbers.window.end_s() * 1_000);
        self.unit.push(row.unit.into());
        self.events.push(i64::try_from(row.events).unwrap_or(i64::MAX));
        Ok(())
    }

    fn write(self, out: &mut SerializedRowGroupWriter<'_, Out>) -> Result<(), ParquetError> {
        for texts in [&self.id, &self.entity, &self.resource, &self.limit, &self.window] {
            column::<ByteArrayType>(out, texts, None)?;
        }
        column::<Int64Type>(out, &self.start, None)?;
        column::<Int64Type>(out, &self.end, None)?;
        column::<FixedLenByteArrayType>(out, &self.amount, None)?;
        column::<ByteArrayType>(out, &self.unit, None)?;
        column::<Int64Type>(out, &self.events, None)?;
        column::<FixedLenByteArrayType>(out, &self.cost, Some(&self.has_cost))?;
        column::<ByteArrayType>(out, &self.currency, Some(&self.has_cost))
    }
}

/// A number of billionths as the schema has it: in two's complement, its highest byte first.
fn decimal(nanos: Option<i128>) -> io::Result<FixedLenByteArray> {
    let nanos = nanos.filter(|nanos| nanos.unsigned_abs() < BEYOND).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "an amount does not fit DECIMAL(38,9)")
    })?;
    Ok(nanos.to_be_bytes().to_vec().into())
}

/// Writes the next column. `present` has a 1 for each row with a value, of a column that may lack
/// some.
fn column<T: DataType>(
    out: &mut SerializedRowGroupWriter<'_, Out>,
    values: &[T::T],
    present: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("the schema has fewer columns".to_owned());
    let mut column = out.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, present, None)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;
    use sluicegate::types::{EpochMillis, LimitName, UsageWindow, WindowKind};
    use sluicegate_core::{Currency, Money};

    use super::*;

    /// Writes as many rows, of which every second has a cost, and returns their bytes.
    fn written(rows: usize, path: &std::path::Path) -> Vec<u8> {
        let limits = ["rpm", "usd"].map(|limit| LimitName::new(limit).unwrap());
        let usage = UsageWindow {
            entity: "u".parse().unwrap(),
            resource: "r".parse().unwrap(),
            window: WindowKind::Hour.containing(EpochMillis::new(1_769_608_800_000).unwrap()),
            consumed_milli: [].into(),
            events: 3,
            expires_at_s: None,
        };
        let mut writer = ParquetWriter::new(Box::new(File::create(path).unwrap())).unwrap();
        let usd = Currency::of("usd").unwrap();
        for row in 0..rows {
            let milli = i128::try_from(row).unwrap() - 1;
            let cost = (row % 2 == 1).then(|| Money::from_nanos(usd, milli));
            writer.write(&Row::new(&usage, &limits[row % 2], milli, cost)).unwrap();
        }
        Box::new(writer).finish().unwrap();
        fs::read(path).unwrap()
    }

    #[test]
    fn rows_are_read_back_from_several_groups_and_have_the_same_bytes_twice() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("1"), folder.path().join("2"));
        let rows = GROUP_ROWS + 3;
        assert!(written(rows, &first) == written(rows, &second), "the bytes differ");
        let file = SerializedFileReader::new(File::open(&first).unwrap()).unwrap();
        assert_eq!(file.num_row_groups(), 2);
        let mut count = 0;
        for row in file.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let number = |column| {
                let decimal = row.get_decimal(column).ok()?;
                Some(i128::from_be_bytes(decimal.data().try_into().unwrap()))
            };
            let (milli, is_money) = (i128::try_from(count).unwrap() - 1, count % 2 == 1);
            let nanos = if is_money { milli } else { milli * 1_000_000 };
            assert_eq!((number(7), number(10)), (Some(nanos), is_money.then_some(milli)));
            let text = |column| row.get_string(column).ok().map(String::as_str);
            assert_eq!((text(1), text(2), text(4)), (Some("u"), Some("r"), Some("hour")));
            assert_eq!(
                (text(8), text(11)),
                if is_money { (Some("USD"), Some("USD")) } else { (Some("token"), None) }
            );
            assert_eq!(row.get_timestamp_millis(5).unwrap(), 1_769_608_800_000);
            assert_eq!(row.get_timestamp_millis(6).unwrap(), 1_769_612_400_000);
            assert_eq!(row.get_long(9).unwrap(), 3);
            count += 1;
        }
        assert_eq!(count, rows);
        let empty = written(0, &first);
        assert!(empty.starts_with(b"PAR1") && empty.ends_with(b"PAR1"));
    }

    #[test]
    fn decimals_have_at_most_38_digits() {
        let most = 10_i128.pow(38) - 1;
        assert_eq!(decimal(Some(-1)).unwrap().data(), [0xff; 16]);
        assert!(decimal(Some(most)).is_ok() && decimal(Some(-most)).is_ok());
        assert!(decimal(Some(most + 1)).is_err() && decimal(Some(-most - 1)).is_err());
        assert!(decimal(None).is_err());
    }
}
