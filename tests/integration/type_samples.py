"""Values of every PostgreSQL type, including its extremes, as texts to cast to it.

The keys of ``SAMPLES`` are the types as docs/types.md lists them; a test compares the two.
"""

SETUP = """
create schema types;
create extension hstore schema types;
create extension citext schema types;
create extension ltree schema types;
create extension cube schema types;
create type types.mood as enum ('sad', 'ok', 'very, "happy" \\ größe', 'NULL');
create domain types.price as numeric(6,1) check (value is null or value > 0);
create domain types.nested as types.price;
create domain types.numbers as int[];
create domain types.moods as types.mood;
create type types.pair as (a int, "größe" text);
create type types.tree as (p types.pair, list numeric[]);
create type types.floatrange as range (subtype = float8);
"""

# The first version with a type that 14 lacks.
SINCE = {"numeric(3,-2)": 150000, "numeric(2,4)": 150000}

FLOATS = ["0", "-0", "1.5", "NaN", "Infinity", "-Infinity", "0.1", "1e-20"]
# The nearest double lies halfway between two reals, and the nearer one is odd: the only such texts, and their
# neighbours. A search of all 4,278,190,080 finite reals found no others.
TWICE_ROUNDED = ["7.038531e-26", "-7.038531e-26", "7.0385313e-26", "-7.0385313e-26"]
TIMES = ["00:00:00", "07:08:09.12", "23:59:59.999999", "24:00:00", "00:00:00.000001", "00:00:01", "00:02:00"]
DAYS = ["2024-05-06", "1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "10000-01-01", "0001-12-31 BC"]
STAMPS = [f"{day} 07:08:09.12" for day in DAYS if "BC" not in day] + [
    "infinity",
    "-infinity",
    "4714-11-24 00:00:00 BC",
    "294276-12-31 23:59:59.999999",
    "1970-01-01 00:00:00",
    "1970-01-01 00:00:00.000001",
    "1969-12-31 23:59:59.999999",
    "1970-01-26 00:00:00",
    "3111-07-01 01:02:03.4",
    "9999-12-31 23:59:59.999999",
]
TEXTS = ["", "a", "größe", "😀", "tab\tnewline\nreturn\rbackslash\\", "\\N", "null", "x" * 9000, "\x01\x7f"]

SAMPLES: dict[str, list[str]] = {
    "smallint": ["0", "1", "-32768", "32767"],
    "integer": ["0", "63", "64", "-64", "-65", "8191", "8192", "9999", "10000", "-2147483648", "2147483647"],
    "bigint": ["0", "134217727", "134217728", "-9223372036854775808", "9223372036854775807", "2199023255552"],
    "oid": ["0", "4294967295"],
    "xid": ["0", "4294967295"],
    "cid": ["0", "4294967295"],
    "xid8": ["0", "9223372036854775807", "9223372036854775808", "18446744073709551615"],
    "real": [*FLOATS, "3.4028235e38", "-3.4028235e38", "1e-45", "1.1754944e-38", *TWICE_ROUNDED],
    "double precision": [*FLOATS, "1.7976931348623157e308", "5e-324", "2.2250738585072014e-308"],
    "boolean": ["t", "f"],
    "numeric": ["0", "0.00", "-1.50", "NaN", "Infinity", "-Infinity", "9" * 131072, "1e-16383", "12300"],
    "numeric(10,2)": ["0", "-0.01", "99999999.99", "-99999999.99", "NaN", "1.28", "-1.28", "-1.29", "327.68"],
    "numeric(1000,0)": ["0", "9" * 1000, "-" + "9" * 1000],
    "numeric(3,-2)": ["0", "12300", "-99900", "NaN"],
    "numeric(2,4)": ["0", "0.0012", "-0.0099"],
    "money": ["0", "0.01", "-1234.56", "92233720368547758.07", "-92233720368547758.08"],
    "text": TEXTS,
    "character varying(20)": ["", "a ", "größe", "😀" * 20],
    "character(5)": ["", "a", "größe"],
    "bpchar": ["", "a  ", "größe"],
    '"char"': ["a", "", "\\351", "\\377"],
    "name": ["", "größe", "x" * 63],
    "bytea": ["\\x", "\\x00", "\\x00ff5c", "\\x" + "00ff5c0a" * 5000],
    "date": [*DAYS, "infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "2000-02-29"],
    "time without time zone": TIMES,
    "time(0) without time zone": ["07:08:09", "24:00:00"],
    "time with time zone": ["00:00:00+00", "24:00:00-15:59:59", "07:08:09.12+05:30"],
    "timestamp without time zone": STAMPS,
    "timestamp(3) without time zone": ["2024-05-06 07:08:09.123", "infinity"],
    "timestamp with time zone": STAMPS,
    "interval": [
        "0",
        "1 year 2 months 3 days 04:05:06.7",
        "-13 months 5 days -00:00:00.000001",
        "1 day -24:00:00",
        "178000000 years",
        "-178000000 years",
        "2147483647 days",
        "2147483647:59:59.999999",
    ],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "json": ['{"a" : 1e400,  "b": [null, "\\u0000"]}', "123456789012345678901234567890.0", '"größe"'],
    "jsonb": ['{"a": 1e400, "b": [null]}', "123456789012345678901234567890.10", '"😀\\t"', "null"],
    "jsonpath": ['$."a"[*] ? (@ > 2)'],
    "xml": ["<a>größe</a>", "text only", '<a b="1"/>'],
    "bit(8)": ["00000000", "11111111", "10100000"],
    "bit varying": ["", "1", "01" * 100],
    "inet": ["127.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/32"],
    "cidr": ["10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15"],
    "txid_snapshot": ["10:20:10,14,15"],
    "tid": ["(0,0)", "(4294967295,65535)"],
    "tsvector": ["", "'größe':1A,2B 'a b':3 'it''s'"],
    "tsquery": ["", "'a' & !( 'b c' | 'd':*AB ) <2> 'e'"],
    "point": ["(0,0)", "(1.5,-0)", "(NaN,Infinity)", "(0.1,1e-300)"],
    "line": ["{1,-1,0.1}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(1,1),(0,0)"],
    "path": ["((0,0),(1,1))", "[(0,0),(1,1)]"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "circle": ["<(0,0),1.5>"],
    "regclass": ["pg_catalog.pg_class", "types.pair", "-", "99999999"],
    "regtype": ["integer", "types.mood", "numeric[]"],
    "regproc": ["pg_catalog.now", "-"],
    "regprocedure": ["pg_catalog.abs(integer)"],
    "regoper": ["pg_catalog.||/"],
    "regoperator": ["pg_catalog.+(integer,integer)"],
    "regnamespace": ["pg_catalog", "types"],
    "regrole": ["postgres"],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regcollation": ['"C"'],
    "refcursor": ["größe"],
    "int2vector": ["", "1 2 -3"],
    "oidvector": ["", "1 4294967295"],
    "aclitem": ["=r/postgres"],
    "int4range": ["empty", "[1,5)", "(,)", "[1,)"],
    "int8range": ["[1,9223372036854775807)"],
    "numrange": ["[1.50,2]", "(,NaN]"],
    "daterange": ["[2024-01-01,infinity)", "[0044-03-15 BC,2024-01-01)"],
    "tsrange": ["[2024-01-01 00:00:00.1,infinity]"],
    "tstzrange": ['["2024-01-01 00:00:00+00",)'],
    "int4multirange": ["{}", "{[1,5),[7,9)}"],
    "int8multirange": ["{[1,5)}"],
    "nummultirange": ["{[1.5,2.5]}"],
    "datemultirange": ["{[2024-01-01,2024-02-01)}"],
    "tsmultirange": ["{[2024-01-01 00:00:00,)}"],
    "tstzmultirange": ["{[2024-01-01 00:00:00+00,)}"],
    "integer[]": ["{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[0:1]={1,2}", "{NULL}"],
    "text[]": ['{"","NULL",NULL,"a,b","{}","\\"","\\\\","größe 😀"," x "}', "{{a}}", "{a}", '{"a\nb"}'],
    "numeric(10,2)[]": ["{1.50,NULL}", "{1,NaN}"],
    "timestamp with time zone[]": ['{"2024-05-06 07:08:09.12+00",NULL}', "{infinity}"],
    "bytea[]": ['{"\\\\x00ff","\\\\x"}'],
    "double precision[]": ["{1.5,NaN,-0,Infinity}"],
    "boolean[]": ["{t,f,NULL}"],
    "uuid[]": ["{ffffffff-ffff-ffff-ffff-ffffffffffff}"],
    "jsonb[]": ['{"{\\"a\\": [1, 2]}","null",NULL}'],
    "box[]": ["{(1,1),(0,0);(3,3),(2,2)}", "{NULL}"],
    "point[]": ['{"(1,2)"}'],
    "int4range[]": ['{"[1,5)",empty}'],
    "types.mood": ["sad", 'very, "happy" \\ größe', "NULL"],
    "types.mood[]": ["{sad,NULL}", '{"very, \\"happy\\" \\\\ größe","NULL"}'],
    "types.price": ["1.5"],
    "types.nested": ["99999.9"],
    "types.nested[]": ["{1.5,NULL}"],
    "types.numbers": ["{1,2}", "{{1}}"],
    "types.moods": ["ok"],
    "types.pair": ["(,)", '(1,"größe, ""x"" \\\\")', "(1,)", '(,"")'],
    "types.pair[]": ['{"(1,a)",NULL}'],
    "types.tree": ['("(1,a)","{1.5,NaN}")'],
    "types.floatrange": ["[0.1,Infinity)"],
    "types.floatmultirange": ["{[0.1,1)}"],
    "types.hstore": ["", '"a"=>"1", "b"=>NULL', '"größe \\" \\\\ =>"=>"", ""=>"NULL", "x"=>"a, b"'],
    "types.hstore[]": ['{"\\"a\\"=>\\"1\\""}'],
    "types.citext": ["", "GrÖße"],
    "types.ltree": ["", "a.b.c"],
    "types.lquery": ["a.*{1,2}.b|c"],
    "types.cube": ["(1, 2),(3, 4)", "(0.1)"],
}
