update match set how = 'mispartitioned' from mispartitioned
 where match.id = mispartitioned.id and match.how = 'place';
