-- The same row in other bytes is as good under the same key. Under a key in other bytes, whatever they decode to, it
-- is another key's to brokers and to compaction.
update hit set how = case when d.other_key then 'rekeyed' else 'equivalent' end
  from differing as d semi join alike using (id)
 where hit.id = d.id;
