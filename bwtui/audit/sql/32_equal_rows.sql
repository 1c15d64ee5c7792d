-- Other bytes that decode to the same row are equivalent, as long as the key's bytes are equal. A key in other bytes
-- is another key to brokers and to compaction, whatever it decodes to.
update match set how = case when d.has_other_key then 'rekeyed' else 'equivalent' end
  from different_bytes as d semi join equal_row using (id)
 where match.id = d.id;
