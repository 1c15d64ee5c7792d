update hit set how = 'astray' from astray where hit.id = astray.id and hit.how = 'place';
