for topic in shop.orders shop.kinds; do
    kcat -C -e -q -b kafka:9092 -t "$topic" -f '%t\t%K\t%S\n%k%s'
done | python decode.py http://registry:8081
